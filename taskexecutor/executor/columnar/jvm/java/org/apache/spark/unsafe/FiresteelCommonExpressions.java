package org.apache.spark.unsafe;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.optimizer.CollapseProject$;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.ObjectType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Evaluates costly expressions that a condition refers to, such as regular expressions, once:
 * see cached_plans/common_expressions.py.
 */
public final class FiresteelCommonExpressions implements java.io.Serializable {
    private static final Set COSTLY = new HashSet(Arrays.asList(new Object[] {
        "RegExpExtract", "RegExpExtractAll", "RegExpReplace", "RegExpInStr", "RegExpCount",
        "RegExpSubStr", "StringSplit", "StringSplitSQL", "SplitPart", "ParseUrl", "Levenshtein",
        "GetJsonObject", "JsonToStructs", "StructsToJson", "CsvToStructs", "XmlToStructs",
        "Md5", "Sha1", "Sha2", "AesDecrypt", "AesEncrypt"}));

    /** Nondeterministic for the optimizer: it pushes no condition below a projection with this call. */
    public boolean always() { return true; }

    public String toString() { return "evaluated once"; }

    /** Returns an equivalent plan whose conditions stay above the expressions they refer to; null if
        they do so already. */
    public static LogicalPlan rewritten(LogicalPlan plan) {
        return within(CollapseProject$.MODULE$.apply(plan));
    }

    private static LogicalPlan within(LogicalPlan plan) {
        ArrayList conditions = new ArrayList();  // in the order of evaluation
        LogicalPlan below = plan;
        while (below instanceof Filter) {
            ArrayList parts = new ArrayList();
            conjuncts(((Filter) below).condition(), parts);
            conditions.addAll(0, parts);
            below = ((Filter) below).child();
        }
        if (!(below instanceof Project)) return null;
        Project project = (Project) below;
        LogicalPlan child = within(project.child());
        if (child != null) project = new Project(project.projectList(), child);
        LogicalPlan found = split(conditions, project);
        if (found != null || child == null) return found;
        return filtered(project, conditions);
    }

    private static LogicalPlan split(ArrayList conditions, Project project) {
        Set asked = new HashSet();
        for (int i = 0; i < conditions.size(); i++) {
            Expression each = (Expression) conditions.get(i);
            if (!each.deterministic()) return null;
            references(each, asked);
        }
        ArrayList cheap = new ArrayList();   // references of the condition
        ArrayList costly = new ArrayList();
        ArrayList behind = new ArrayList();  // the columns, after the condition
        Set late = new HashSet();
        for (int i = 0; i < project.projectList().size(); i++) {
            NamedExpression each = (NamedExpression) project.projectList().apply(i);
            if (!((Expression) each).deterministic()) return null;
            if (each instanceof Alias && asked.contains(each.exprId())) {
                behind.add(each.toAttribute());
                if (isCostly((Expression) each)) {
                    costly.add(each);
                    late.add(each.exprId());
                } else cheap.add(each);
            } else behind.add(each);
        }
        if (late.isEmpty()) return null;
        int early = 0;  // number of conditions below the costly expressions
        while (early < conditions.size()
                && !refers((Expression) conditions.get(early), late)) early++;
        LogicalPlan plan = filtered(
            with(project.child(), cheap), conditions.subList(0, early));
        Alias barrier = barrier();
        costly.add(barrier);
        plan = new Filter(barrier.toAttribute(), with(plan, costly));
        return new Project(
            seq(behind), filtered(plan, conditions.subList(early, conditions.size())));
    }

    private static LogicalPlan filtered(LogicalPlan plan, java.util.List conditions) {
        for (int i = 0; i < conditions.size(); i++) {
            plan = new Filter((Expression) conditions.get(i), plan);
        }
        return plan;
    }

    private static LogicalPlan with(LogicalPlan plan, ArrayList columns) {
        ArrayList all = new ArrayList(CollectionConverters.asJava(plan.output()));
        all.addAll(columns);
        return new Project(seq(all), plan);
    }

    private static void conjuncts(Expression condition, ArrayList into) {
        if (condition instanceof And) {
            conjuncts(((And) condition).left(), into);
            conjuncts(((And) condition).right(), into);
        } else into.add(condition);
    }

    private static void references(Expression expression, Set into) {
        if (expression instanceof Attribute) into.add(((Attribute) expression).exprId());
        for (int i = 0; i < expression.children().size(); i++) {
            references((Expression) expression.children().apply(i), into);
        }
    }

    private static boolean refers(Expression expression, Set ids) {
        Set found = new HashSet();
        references(expression, found);
        return !java.util.Collections.disjoint(found, ids);
    }

    private static boolean isCostly(Expression expression) {
        if (COSTLY.contains(expression.getClass().getSimpleName())) return true;
        for (int i = 0; i < expression.children().size(); i++) {
            if (isCostly((Expression) expression.children().apply(i))) return true;
        }
        return false;
    }

    private static Alias barrier() {
        Expression call = new Invoke(
            new Literal(new FiresteelCommonExpressions(), new ObjectType(FiresteelCommonExpressions.class)), "always",
            DataTypes.BooleanType, seq(new ArrayList()), seq(new ArrayList()), true, false,
            false);  // not deterministic
        return new Alias(
            call, "evaluated once", NamedExpression$.MODULE$.newExprId(), seq(new ArrayList()),
            scala.Option.apply(null), seq(new ArrayList()));
    }

    private static Seq seq(ArrayList of) {
        return CollectionConverters.asScala(of).toSeq();
    }
}
