package org.apache.spark.unsafe;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.xbean.asm9.ClassWriter;
import org.apache.xbean.asm9.Handle;
import org.apache.xbean.asm9.MethodVisitor;
import org.apache.xbean.asm9.Opcodes;
import org.apache.xbean.asm9.Type;
import org.apache.xbean.asm9.tree.InvokeDynamicInsnNode;

/** One lambda and its class. Names as in LambdaMetafactory.altMetafactory. */
final class FiresteelLambda {
    private static final int SERIALIZABLE = 1, MARKERS = 2, BRIDGES = 4; // flags
    private static final String OBJECT = "java/lang/Object";
    private static final String FORM = "java/lang/invoke/SerializedLambda";
    private static final String[] BOXES =
        {null, "Boolean", "Character", "Byte", "Short", "Integer", "Float", "Long", "Double"};

    final String name;
    private final InvokeDynamicInsnNode call;
    private final Handle body;
    private final Type[] captured;
    private final Type[] bodyTypes; // of the arguments that are not captured
    private final Type bodyResult;
    private final Type instantiated;
    private final boolean serializable;
    private final Set interfaces = new LinkedHashSet();
    private final List methods = new ArrayList(); // types of the interface's method and of its bridges
    private final ClassWriter writer = new ClassWriter(ClassWriter.COMPUTE_MAXS);

    FiresteelLambda(String name, InvokeDynamicInsnNode call) {
        this.name = name;
        this.call = call;
        Object[] arguments = call.bsmArgs;
        body = (Handle) arguments[1];
        captured = Type.getArgumentTypes(call.desc);
        Type[] all = Type.getArgumentTypes(body.getDesc());
        bodyTypes = (Type[]) Arrays.copyOfRange(all, captured.length, all.length);
        bodyResult = Type.getReturnType(body.getDesc());
        instantiated = (Type) arguments[2];
        methods.add(arguments[0]);
        interfaces.add(Type.getReturnType(call.desc).getInternalName());
        int flags = ((Integer) arguments[3]).intValue();
        serializable = (flags & SERIALIZABLE) != 0;
        interfaces.add("java/io/Serializable");
        int next = 4;
        if ((flags & MARKERS) != 0) {
            int count = ((Integer) arguments[next++]).intValue();
            for (int i = 0; i < count; i++) interfaces.add(((Type) arguments[next++]).getInternalName());
        }
        if ((flags & BRIDGES) != 0) {
            int count = ((Integer) arguments[next++]).intValue();
            for (int i = 0; i < count; i++) methods.add(arguments[next++]);
        }
    }

    /** Whether it is serializable and its arguments and result need at most a cast. */
    boolean isSupported() {
        if (!serializable || body.getTag() != Opcodes.H_INVOKESTATIC) return false;
        Type[] exact = instantiated.getArgumentTypes();
        for (Object each : methods) {
            Type[] given = ((Type) each).getArgumentTypes();
            for (int i = 0; i < given.length; i++) {
                if (!isCastable(given[i], exact[i]) || !isCastable(exact[i], bodyTypes[i])) return false;
            }
            Type result = ((Type) each).getReturnType();
            if (result.getSort() != Type.VOID && !isCastable(bodyResult, result)) return false;
        }
        return true;
    }

    ClassWriter written() {
        int access = Opcodes.ACC_FINAL | Opcodes.ACC_SUPER | Opcodes.ACC_SYNTHETIC;
        writer.visit(Opcodes.V1_8, access, name, null, OBJECT, (String[]) interfaces.toArray(new String[0]));
        String constructor = Type.getMethodDescriptor(Type.VOID_TYPE, captured);
        MethodVisitor code = method(Opcodes.ACC_PRIVATE, "<init>", constructor);
        code.visitVarInsn(Opcodes.ALOAD, 0);
        code.visitMethodInsn(Opcodes.INVOKESPECIAL, OBJECT, "<init>", "()V", false);
        for (int i = 0, local = 1; i < captured.length; local += captured[i++].getSize()) {
            String type = captured[i].getDescriptor();
            writer.visitField(Opcodes.ACC_PRIVATE | Opcodes.ACC_FINAL, field(i), type, null, null).visitEnd();
            code.visitVarInsn(Opcodes.ALOAD, 0);
            code.visitVarInsn(captured[i].getOpcode(Opcodes.ILOAD), local);
            code.visitFieldInsn(Opcodes.PUTFIELD, name, field(i), type);
        }
        end(code, Opcodes.RETURN);
        if (captured.length == 0) {
            writeSingleton();
        } else {
            code = method(Opcodes.ACC_STATIC, "get", call.desc);
            writeNew(code, constructor);
            end(code, Opcodes.ARETURN);
        }
        for (Object type : methods) writeMethod((Type) type);
        writeSerializedForm();
        writer.visitEnd();
        return writer;
    }

    private void writeSingleton() {
        String type = "L" + name + ";";
        int access = Opcodes.ACC_PRIVATE | Opcodes.ACC_STATIC | Opcodes.ACC_FINAL;
        writer.visitField(access, "INSTANCE", type, null, null).visitEnd();
        MethodVisitor code = method(Opcodes.ACC_STATIC, "<clinit>", "()V");
        writeNew(code, "()V");
        code.visitFieldInsn(Opcodes.PUTSTATIC, name, "INSTANCE", type);
        end(code, Opcodes.RETURN);
        code = method(Opcodes.ACC_STATIC, "get", call.desc);
        code.visitFieldInsn(Opcodes.GETSTATIC, name, "INSTANCE", type);
        end(code, Opcodes.ARETURN);
    }

    private void writeNew(MethodVisitor code, String constructor) {
        code.visitTypeInsn(Opcodes.NEW, name);
        code.visitInsn(Opcodes.DUP);
        for (int i = 0, local = 0; i < captured.length; local += captured[i++].getSize()) {
            code.visitVarInsn(captured[i].getOpcode(Opcodes.ILOAD), local);
        }
        code.visitMethodInsn(Opcodes.INVOKESPECIAL, name, "<init>", constructor, false);
    }

    private void writeMethod(Type type) {
        MethodVisitor code = method(Opcodes.ACC_PUBLIC, call.name, type.getDescriptor());
        for (int i = 0; i < captured.length; i++) load(code, i);
        Type[] given = type.getArgumentTypes();
        for (int i = 0, local = 1; i < given.length; local += given[i++].getSize()) {
            code.visitVarInsn(given[i].getOpcode(Opcodes.ILOAD), local);
            Type exact = instantiated.getArgumentTypes()[i];
            cast(code, given[i], exact);
            cast(code, exact, bodyTypes[i]);
        }
        code.visitMethodInsn(
            Opcodes.INVOKESTATIC, body.getOwner(), body.getName(), body.getDesc(), body.isInterface());
        Type result = type.getReturnType();
        if (result.getSort() != Type.VOID) cast(code, bodyResult, result);
        else if (bodyResult.getSize() > 0) code.visitInsn(bodyResult.getSize() == 1 ? Opcodes.POP : Opcodes.POP2);
        end(code, result.getOpcode(Opcodes.IRETURN));
    }

    private void writeSerializedForm() {
        MethodVisitor code = method(Opcodes.ACC_PRIVATE | Opcodes.ACC_FINAL, "writeReplace", "()Ljava/lang/Object;");
        code.visitTypeInsn(Opcodes.NEW, FORM);
        code.visitInsn(Opcodes.DUP);
        code.visitLdcInsn(Type.getObjectType(body.getOwner()));
        code.visitLdcInsn(Type.getReturnType(call.desc).getInternalName());
        code.visitLdcInsn(call.name);
        code.visitLdcInsn(((Type) methods.get(0)).getDescriptor());
        code.visitIntInsn(Opcodes.BIPUSH, body.getTag());
        code.visitLdcInsn(body.getOwner());
        code.visitLdcInsn(body.getName());
        code.visitLdcInsn(body.getDesc());
        code.visitLdcInsn(instantiated.getDescriptor());
        code.visitIntInsn(Opcodes.SIPUSH, captured.length);
        code.visitTypeInsn(Opcodes.ANEWARRAY, OBJECT);
        for (int i = 0; i < captured.length; i++) {
            code.visitInsn(Opcodes.DUP);
            code.visitIntInsn(Opcodes.SIPUSH, i);
            load(code, i);
            if (!isReference(captured[i])) {
                String box = "java/lang/" + BOXES[captured[i].getSort()];
                String conversion = "(" + captured[i].getDescriptor() + ")L" + box + ";";
                code.visitMethodInsn(Opcodes.INVOKESTATIC, box, "valueOf", conversion, false);
            }
            code.visitInsn(Opcodes.AASTORE);
        }
        String text = "Ljava/lang/String;";
        String texts = text + text + text;
        String constructor = "(Ljava/lang/Class;" + texts + "I" + texts + text + "[Ljava/lang/Object;)V";
        code.visitMethodInsn(Opcodes.INVOKESPECIAL, FORM, "<init>", constructor, false);
        end(code, Opcodes.ARETURN);
    }

    private MethodVisitor method(int access, String name, String type) {
        MethodVisitor code = writer.visitMethod(access, name, type, null, null);
        code.visitCode();
        return code;
    }

    private void end(MethodVisitor code, int instruction) {
        code.visitInsn(instruction);
        code.visitMaxs(0, 0);
        code.visitEnd();
    }

    private String field(int i) {
        return "arg$" + (i + 1); // Spark's ClosureCleaner uses this name
    }

    private void load(MethodVisitor code, int i) {
        code.visitVarInsn(Opcodes.ALOAD, 0);
        code.visitFieldInsn(Opcodes.GETFIELD, name, field(i), captured[i].getDescriptor());
    }

    private static boolean isReference(Type type) {
        return type.getSort() >= Type.ARRAY;
    }

    private static boolean isCastable(Type from, Type to) {
        return from.equals(to) || isReference(from) && isReference(to);
    }

    private static void cast(MethodVisitor code, Type from, Type to) {
        if (from.equals(to) || to.getInternalName().equals(OBJECT)) return;
        code.visitTypeInsn(Opcodes.CHECKCAST, to.getInternalName());
    }
}
