package org.apache.spark.unsafe;

import java.io.FileOutputStream;
import java.io.InputStream;
import java.net.URL;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.zip.ZipEntry;
import java.util.zip.ZipOutputStream;
import org.apache.xbean.asm9.ClassReader;
import org.apache.xbean.asm9.ClassWriter;
import org.apache.xbean.asm9.Handle;
import org.apache.xbean.asm9.Opcodes;
import org.apache.xbean.asm9.tree.AbstractInsnNode;
import org.apache.xbean.asm9.tree.ClassNode;
import org.apache.xbean.asm9.tree.InvokeDynamicInsnNode;
import org.apache.xbean.asm9.tree.MethodInsnNode;
import org.apache.xbean.asm9.tree.MethodNode;

/**
 * Replaces Scala's lambdas by classes.
 *
 * The JVM generates the class of a lambda when a program first evaluates it. It archives these classes, but not
 * those of serializable lambdas, which all of Scala's are: every start would generate 3,000. Classes in jars are
 * archived.
 *
 * The replacement is what java.lang.invoke.LambdaMetafactory generates: the same interfaces, fields and writeReplace().
 */
public final class FiresteelLambdas {
    /** Writes the classes `owners`, separated by spaces, without lambdas, and the lambdas' classes to a new jar. */
    public static void write(String owners, String path) throws Exception {
        ZipOutputStream jar = new ZipOutputStream(new FileOutputStream(path));
        for (String owner : owners.split(" ")) {
            URL source = ClassLoader.getSystemResource(owner + ".class");
            if (source == null || !source.getProtocol().equals("jar")) continue; // generated, or of the JDK
            ClassNode node = new ClassNode();
            InputStream content = source.openStream();
            new ClassReader(content).accept(node, 0);
            content.close();
            List lambdas = replaced(node);
            if (lambdas.isEmpty()) continue;
            ClassWriter writer = new ClassWriter(0);
            node.accept(writer);
            put(jar, node.name, writer);
            for (Object each : lambdas) {
                FiresteelLambda lambda = (FiresteelLambda) each;
                put(jar, lambda.name, lambda.written());
            }
        }
        jar.close();
    }

    private static void put(ZipOutputStream jar, String name, ClassWriter content) throws Exception {
        jar.putNextEntry(new ZipEntry(name + ".class"));
        jar.write(content.toByteArray());
        jar.closeEntry();
    }

    private static List replaced(ClassNode owner) {
        Set callable = new HashSet();
        int wanted = Opcodes.ACC_PUBLIC | Opcodes.ACC_STATIC;
        for (Object each : owner.methods) {
            MethodNode method = (MethodNode) each;
            if ((method.access & wanted) == wanted) callable.add(method.name + method.desc);
        }
        List lambdas = new ArrayList();
        for (Object each : owner.methods) {
            MethodNode method = (MethodNode) each;
            AbstractInsnNode next;
            for (AbstractInsnNode at = method.instructions.getFirst(); at != null; at = next) {
                next = at.getNext();
                if (!(at instanceof InvokeDynamicInsnNode)) continue;
                InvokeDynamicInsnNode call = (InvokeDynamicInsnNode) at;
                if (!call.bsm.getOwner().equals("java/lang/invoke/LambdaMetafactory")) continue;
                if (!call.bsm.getName().equals("altMetafactory")) continue;
                Handle body = (Handle) call.bsmArgs[1];
                if (!body.getOwner().equals(owner.name)) continue;
                if (!callable.contains(body.getName() + body.getDesc())) continue;
                FiresteelLambda lambda = new FiresteelLambda(owner.name + "$$Lambda$F" + lambdas.size(), call);
                if (!lambda.isSupported()) continue;
                lambdas.add(lambda);
                method.instructions.set(
                    at, new MethodInsnNode(Opcodes.INVOKESTATIC, lambda.name, "get", call.desc, false));
            }
        }
        return lambdas;
    }
}
