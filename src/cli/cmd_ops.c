/* surogate ops [--json]: lists the ops of models. python/surogate/dsl reads the JSON. */
#include "cli/cli.h"

#include "ops/ops.h"

#include <string.h>

static const char *const attr_types[] = {[ATTR_TYPE_INT] = "int",
                                         [ATTR_TYPE_FLOAT] = "float",
                                         [ATTR_TYPE_BOOL] = "bool",
                                         [ATTR_TYPE_DTYPE] = "dtype",
                                         [ATTR_TYPE_LIST] = "list"};

static void write_attr(StrBuf *out, const AttrDef *a)
{
    strbuf_printf(out, "{\"name\": \"%s\", \"type\": \"%s\", \"default\": ", a->name, attr_types[a->type]);
    if (a->type == ATTR_TYPE_DTYPE || a->of_node)
        strbuf_puts(out, "null");
    else if (a->type == ATTR_TYPE_LIST)
        strbuf_puts(out, "[]");
    else if (a->type == ATTR_TYPE_BOOL)
        strbuf_puts(out, a->default_value != 0 ? "true" : "false");
    else
        json_write_double(out, a->default_value);
    strbuf_putc(out, '}');
}

static void write_op(StrBuf *out, int id)
{
    const OpDef *op = op_table[id];
    strbuf_printf(out, " {\"name\": \"%s\", \"signature\": ", op->name);
    json_write_string(out, op_signatures[id], strlen(op_signatures[id]));
    strbuf_puts(out, ", \"synopsis\": ");
    json_write_string(out, op->synopsis, strlen(op->synopsis));
    strbuf_printf(out, ", \"differentiable\": %s, \"attrs\": [", op->backward ? "true" : "false");
    for (const AttrDef *a = op->attrs; a && a->type != ATTR_TYPE_END; a++) {
        if (a != op->attrs) strbuf_puts(out, ", ");
        write_attr(out, a);
    }
    strbuf_puts(out, "]}");
}

Status cmd_ops(CliArgs *args)
{
    bool       json = false, done;
    const Flag flags[] = {{"--json", FLAG_SWITCH, &json, NULL, "with attributes, their types and defaults; an op a line"}};
    TRY(cli_parse(args, flags, 1, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 0));
    StrBuf out = {0};
    if (json) strbuf_puts(&out, "[\n");
    for (int id = 0; id < OP_COUNT; id++) {
        if (json)
            write_op(&out, id);
        else
            strbuf_printf(&out, "%-20s %s\n", op_table[id]->name, op_signatures[id]);
        if (json) strbuf_puts(&out, id + 1 < OP_COUNT ? ",\n" : "\n]\n");
    }
    Status status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}
