package org.apache.spark.unsafe;

import java.util.ArrayList;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/** Finds the results of a plan that are unchanged columns of its input: see cached_plans/passthrough.py. */
public final class FiresteelPassthrough {
    private final LogicalPlan whole;
    private final DataSourceV2Relation leaf;
    private final boolean filtered;
    private final int[] sources;  // for each result: the index of a column of the leaf, or -1

    private FiresteelPassthrough(LogicalPlan whole, DataSourceV2Relation leaf, boolean filtered) {
        this.whole = whole;
        this.leaf = leaf;
        this.filtered = filtered;
        sources = new int[whole.output().size()];
        for (int i = 0; i < sources.length; i++) {
            ExprId source = source((Attribute) whole.output().apply(i), whole);
            sources[i] = source == null ? -1 : place(source, leaf);
        }
    }

    /** Returns a plan of a leaf's columns, without the column of row numbers. */
    public static LogicalPlan shown(LogicalPlan leaf) {
        ArrayList columns = new ArrayList(CollectionConverters.asJava(leaf.output()));
        columns.remove(columns.size() - 1);
        return new Project(seq(columns), leaf);
    }

    /** Returns null if the plan does more than filter and project. */
    public static FiresteelPassthrough of(LogicalPlan whole) {
        LogicalPlan node = whole;
        boolean filtered = false;
        while (!(node instanceof DataSourceV2Relation)) {
            if (node instanceof Filter) {
                filtered = true;
                node = ((Filter) node).child();
            } else if (node instanceof Project) node = ((Project) node).child();
            else if (node instanceof SubqueryAlias) node = ((SubqueryAlias) node).child();
            else return null;
        }
        DataSourceV2Relation leaf = (DataSourceV2Relation) node;
        if (!(leaf.table() instanceof FiresteelArrowTable)) return null;
        return new FiresteelPassthrough(whole, leaf, filtered);
    }

    public boolean filtered() { return filtered; }

    /** Returns the indices of the columns, as a JSON list. */
    public String sources() { return Arrays.toString(sources); }

    /** Returns the names of the leaf's columns. */
    public String[] columns() { return ((FiresteelArrowTable) leaf.table()).schema().fieldNames(); }

    /** Returns the plan of the other results, with their row numbers if rows are filtered. */
    public LogicalPlan rest() {
        ArrayList columns = new ArrayList();
        for (int i = 0; i < sources.length; i++) {
            if (sources[i] < 0) columns.add(whole.output().apply(i));
        }
        if (!filtered) return new Project(seq(columns), whole);
        Attribute place = (Attribute) leaf.output().apply(leaf.output().size() - 1);
        columns.add(place);
        return new Project(seq(columns), with(place, whole));
    }

    /** Returns the plan with an additional column of the leaf. */
    private static LogicalPlan with(Attribute place, LogicalPlan plan) {
        if (plan instanceof Filter) {
            Filter filter = (Filter) plan;
            return new Filter(filter.condition(), with(place, filter.child()));
        }
        if (plan instanceof SubqueryAlias) return with(place, ((SubqueryAlias) plan).child());
        if (plan instanceof Project) {
            Project project = (Project) plan;
            ArrayList columns = new ArrayList(CollectionConverters.asJava(project.projectList()));
            columns.add(place);
            return new Project(seq(columns), with(place, project.child()));
        }
        return plan;
    }

    /** Returns the column of the leaf that equals the plan's column; null if it is computed. */
    private static ExprId source(Attribute column, LogicalPlan plan) {
        ExprId wanted = column.exprId();
        while (!(plan instanceof DataSourceV2Relation)) {
            if (plan instanceof Project) {
                Expression found = null;
                Seq columns = ((Project) plan).projectList();
                for (int i = 0; i < columns.size() && found == null; i++) {
                    NamedExpression each = (NamedExpression) columns.apply(i);
                    if (each.exprId().equals(wanted)) found = (Expression) each;
                }
                while (found instanceof Alias) found = ((Alias) found).child();
                if (!(found instanceof Attribute)) return null;
                wanted = ((Attribute) found).exprId();
            }
            plan = (LogicalPlan) plan.children().head();
        }
        return wanted;
    }

    private static int place(ExprId column, DataSourceV2Relation leaf) {
        for (int i = 0; i < leaf.output().size(); i++) {
            if (((Attribute) leaf.output().apply(i)).exprId().equals(column)) return i;
        }
        return -1;
    }

    private static Seq seq(ArrayList of) {
        return CollectionConverters.asScala(of).toSeq();
    }
}
