/* The text form of a graph (docs/ir.md): one line per value from outside, then nodes in order, then outputs. */
#include "ir/graph_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Prints the number with the fewest digits that read back to the same number. */
static void print_number(StrBuf *out, double value)
{
    char buf[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, value);
        if (strtod(buf, NULL) == value) break;
    }
    strbuf_puts(out, buf);
}

static void print_float(StrBuf *out, float value)
{
    char buf[40];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, (double)value);
        if (strtof(buf, NULL) == value) break;
    }
    strbuf_puts(out, buf);
}

static void print_quoted(StrBuf *out, const char *text)
{
    strbuf_putc(out, '"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') strbuf_putc(out, '\\');
        strbuf_putc(out, *text == '\n' ? ' ' : *text); /* a new line would end the entry */
    }
    strbuf_putc(out, '"');
}

/* text NULL: prints nothing. */
static void print_text(StrBuf *out, const char *key, const char *text)
{
    if (!text) return;
    strbuf_printf(out, " %s=", key);
    print_quoted(out, text);
}

static void print_param(StrBuf *out, const Param *p)
{
    strbuf_puts(out, " {");
    for (const ParamFlag *flag = param_flags; flag->name; flag++)
        if (*(const bool *)((const char *)p + flag->offset)) strbuf_printf(out, "%s ", flag->name);
    strbuf_printf(out, "init=%s", init_kind_names[p->init]);
    if (init_takes_number(p->init)) {
        strbuf_putc(out, ':');
        print_float(out, p->init_std);
    }
    for (int i = 0; i < p->num_matrices; i++) strbuf_printf(out, "%s%lld", i ? ":" : " matrices=", (long long)p->matrices[i]);
    print_text(out, "namespace", p->ns);
    print_text(out, "module", p->module);
    if (p->hf.num_names) {
        strbuf_printf(out, " hf=%s", hf_kind_names[p->hf.kind]);
        if (p->hf.kind == HF_SLICE)
            strbuf_printf(out, ":%lld:%lld:%lld", (long long)p->hf.begin, (long long)p->hf.rows, (long long)p->hf.total_rows);
        for (int64_t i = 0; p->hf.kind == HF_ROWS && i < p->hf.rows; i++) strbuf_printf(out, ":%lld", (long long)p->hf.ids[i]);
        for (int i = 0; i < p->hf.num_names; i++) {
            strbuf_putc(out, ' ');
            print_quoted(out, p->hf.names[i]);
        }
    }
    strbuf_putc(out, '}');
}

static void print_value(StrBuf *out, const Value *value)
{
    char buf[64];
    strbuf_printf(out, "%s %s: %s", value_kind_names[value->kind], value->name, type_text(&value->type, buf));
    if (value->space && !value->storage) strbuf_printf(out, " space=%s", space_name(value->space));
    if (value->layer >= 0) strbuf_printf(out, " layer=%d", value->layer);
    if (value->storage) strbuf_printf(out, " base=%s@%lld", value->storage->name, (long long)value->offset);
    if (value->param) print_param(out, value->param);
    if (value->const_data) {
        bool whole = value->type.dtype == DT_I64;
        CHECK(whole || value->type.dtype == DT_F32);
        strbuf_puts(out, " data=[");
        for (int64_t i = 0; i < type_numel(&value->type); i++) {
            if (i) strbuf_putc(out, ',');
            if (whole) strbuf_printf(out, "%lld", (long long)((const int64_t *)value->const_data)[i]);
            if (!whole) print_float(out, ((const float *)value->const_data)[i]);
        }
        strbuf_putc(out, ']');
    }
    strbuf_putc(out, '\n');
}

static void print_list(StrBuf *out, const AttrList *list)
{
    for (int64_t i = 0; i < list->count; i++) {
        strbuf_puts(out, i ? ", " : "[");
        print_number(out, list->values[i]);
    }
    strbuf_putc(out, ']');
}

static void print_attrs(StrBuf *out, const Node *node)
{
    const char *attrs = node->attrs;
    const char *separator = " {";
    for (const AttrDef *a = node->op->attrs; a && a->type != ATTR_TYPE_END; a++) {
        int64_t         dtype = a->type == ATTR_TYPE_DTYPE ? *(const int64_t *)(const void *)(attrs + a->offset) : 0;
        const AttrList *list = a->type == ATTR_TYPE_LIST ? (const AttrList *)(const void *)(attrs + a->offset) : NULL;
        if ((a->type == ATTR_TYPE_DTYPE && !dtype) || (list && !list->count) || (a->is_rare && !*(const bool *)(attrs + a->offset)))
            continue;
        strbuf_printf(out, "%s%s=", separator, a->name);
        separator = ", ";
        if (a->type == ATTR_TYPE_INT) strbuf_printf(out, "%lld", (long long)*(const int64_t *)(const void *)(attrs + a->offset));
        if (a->type == ATTR_TYPE_FLOAT) print_number(out, *(const double *)(const void *)(attrs + a->offset));
        if (a->type == ATTR_TYPE_BOOL) strbuf_puts(out, *(const bool *)(attrs + a->offset) ? "true" : "false");
        if (dtype) strbuf_puts(out, dtype_info(ATTR_TO_DTYPE(dtype))->name);
        if (list) print_list(out, list);
    }
    if (separator[0] == ',') strbuf_putc(out, '}');
}

static const char *node_name(const Node *node)
{
    for (int k = 0; k < node->num_out; k++)
        if (node->out[k]) return node->out[k]->name;
    return "_";
}

/* Whether `earlier` still is a node of the graph and runs before `node`. */
static bool orders(const Node *earlier, const Node *node)
{
    for (int k = 0; k < earlier->num_out; k++)
        if (earlier->out[k]) return earlier->out[k]->producer == earlier && node_precedes(earlier, node);
    return false;
}

/* Number of printed outputs: trailing codes (OpCodes) that are not wanted are left out. */
static int num_printed(const Node *node)
{
    int count = node->num_out;
    while (node->op->codes.op && count > node->op->codes.out && !node->out[count - 1]) count--;
    return count;
}

void node_print(const Node *node, StrBuf *out)
{
    char buf[64];
    for (int k = 0; k < num_printed(node); k++) {
        const Value *value = node->out[k];
        if (k) strbuf_puts(out, ", ");
        if (!value) strbuf_putc(out, '_');
        if (!value) continue;
        strbuf_printf(out, "%s: %s", value->name, type_text(&value->type, buf));
        if (value->space && !value->storage) strbuf_printf(out, " space=%s", space_name(value->space));
        if (value->hint) strbuf_printf(out, " hint=%s", hint_name(value->hint));
        if (value->sharing != STORAGE_HOME) continue;
        strbuf_printf(out, " home=%s", value->storage->name);
        if (value->offset) strbuf_printf(out, "@%lld", (long long)value->offset);
    }
    strbuf_printf(out, " = %s(", node->op->name);
    int num_in = node->num_in;
    while (num_in && !node->in[num_in - 1]) num_in--;
    for (int i = 0; i < num_in; i++) strbuf_printf(out, "%s%s", i ? ", " : "", node->in[i] ? node->in[i]->name : "_");
    strbuf_putc(out, ')');
    print_attrs(out, node);
    if (node->layer >= 0) strbuf_printf(out, " layer=%d", node->layer);
    if (node->part) strbuf_printf(out, " part=%s", part_name(node->part));
    for (const NodeFlag *flag = node_flags; flag->name; flag++)
        if (node->flags & flag->bit) strbuf_printf(out, " %s", flag->name);
    if (node->stream) strbuf_printf(out, " stream=%s", stream_name(node->stream));
    for (int i = 0; i < node->num_after; i++)
        if (orders(node->after[i], node)) strbuf_printf(out, " after=%s", node_name(node->after[i]));
    print_text(out, "source", node->source);
    strbuf_putc(out, '\n');
}

void graph_print(const Graph *graph, StrBuf *out)
{
    strbuf_puts(out, "graph ");
    print_quoted(out, graph->name);
    strbuf_puts(out, graph->rows_alone ? " rows_alone\n" : "\n");
    for (int i = 0; i < graph->num_values; i++)
        if (!graph->values[i]->producer && graph->values[i]->kind != VALUE_ACTIVATION) print_value(out, graph->values[i]);
    for (const Node *node = graph->first; node; node = node->next) node_print(node, out);
    for (int i = 0; i < graph->num_outputs; i++)
        strbuf_printf(out, "output %s = %s\n", graph->outputs[i].name, graph->outputs[i].value->name);
}
