/* Writes the ported run file: our keys in their order, with the origin behind each value, and at the end the keys without a counterpart. */
#include "port/port_internal.h"

#include <string.h>

enum { COMMENT_COLUMN = 44 };

/* Keeps a comment on one line: newlines become blanks. */
static void put_comment(StrBuf *out, const char *text)
{
    for (; *text; text++) strbuf_putc(out, (unsigned char)*text < ' ' ? ' ' : *text);
    strbuf_putc(out, '\n');
}

static void put_key(StrBuf *out, const char *lead, const OptionInfo *option, const void *field, const char *from)
{
    size_t begin = out->len;
    strbuf_printf(out, "%s%s: ", lead, option->name);
    config_print_value(out, option, field);
    while (out->len - begin < COMMENT_COLUMN) strbuf_putc(out, ' ');
    strbuf_puts(out, " # ");
    put_comment(out, from);
}

static void put_datasets(StrBuf *out, const char *name, const PortDatasets *list)
{
    if (list->count) strbuf_printf(out, "%s:\n", name);
    for (size_t i = 0; i < list->count; i++) {
        const PortDataset *dataset = list->items[i];
        const char        *lead = "  - ";
        for (int key = 0; key < CONFIG_KEY_COUNT; key++) {
            if (!dataset->from[key]) continue;
            put_key(out, lead, &options[key], (const char *)&dataset->dataset + options[key].offset, dataset->from[key]);
            lead = "    ";
        }
    }
}

static void put_keys(const Port *port, StrBuf *out)
{
    bool is_first = true;
    for (size_t i = 0; i < num_option_rows; i++) {
        const OptionRow *row = &option_rows[i];
        if (row->title) {
            is_first = true;
            continue;
        }
        const PortDatasets *list = row->key == KEY_run_datasets              ? &port->datasets
                                   : row->key == KEY_run_validation_datasets ? &port->validation
                                                                             : NULL;
        if (options[row->key].scope != SCOPE_run || (list ? !list->count : !port->from[row->key])) continue;
        if (is_first) strbuf_putc(out, '\n');
        is_first = false;
        if (list)
            put_datasets(out, options[row->key].name, list);
        else
            put_key(out, "", &options[row->key], (const char *)&port->config + options[row->key].offset, port->from[row->key]);
    }
}

static void put_list(StrBuf *out, const char *title, const StrList *list)
{
    if (list->count) strbuf_printf(out, "\n# %s\n", title);
    for (size_t i = 0; i < list->count; i++) {
        strbuf_puts(out, "#   ");
        put_comment(out, list->items[i]);
    }
}

void port_write(const Port *port, StrBuf *out)
{
    const char *name = strrchr(port->path, '/');
    strbuf_puts(out, "# ");
    put_comment(out, arena_printf(port->arena, "Ported from %s, a run file of %s. Train with: surogate %s", name ? name + 1 : port->path,
                                  foreign_title(port->tool), port->is_pretraining ? "pt" : "sft"));
    put_keys(port, out);
    put_list(out, "No counterpart, or not the same one: the result may change.", &port->changes);
    put_list(out, "No counterpart: the result is the same.", &port->same);
}
