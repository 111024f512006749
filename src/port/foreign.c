/* Looking up other tools' keys. */
#include "port/foreign.h"

#include "config/value.h"
#include "port/port_internal.h"

#include <fnmatch.h>
#include <string.h>
#include <strings.h>

#define TAKES(tools, scope, name, key) {tools, SCOPE_##scope, name, NULL, FOREIGN_TAKES, KEY_##scope##_##key, NULL, NULL, NULL},
#define MEANS(tools, scope, name, value, key, ours, text) \
    {tools, SCOPE_##scope, name, value, FOREIGN_MEANS, KEY_##scope##_##key, ours, text, NULL},
#define DIFFERS(tools, scope, name, value, key, ours, text) \
    {tools, SCOPE_##scope, name, value, FOREIGN_DIFFERS, KEY_##scope##_##key, ours, text, NULL},
#define NOTHING(tools, scope, name, value, text) {tools, SCOPE_##scope, name, value, FOREIGN_NOTHING, 0, NULL, text, NULL},
#define LOST(tools, scope, name, value, text) {tools, SCOPE_##scope, name, value, FOREIGN_LOST, 0, NULL, text, NULL},
#define LACKS(tools, scope, name, value, text) {tools, SCOPE_##scope, name, value, FOREIGN_LACKS, 0, NULL, text, NULL},
#define READS(tools, scope, name, function) {tools, SCOPE_##scope, name, NULL, FOREIGN_READS, 0, NULL, NULL, port_read_##function},
const ForeignKey foreign_keys[] = {
#include "port/foreign.def"
};
const size_t num_foreign_keys = sizeof foreign_keys / sizeof *foreign_keys;

#define DEFAULT(tools, key, value, where) {tools, KEY_run_##key, value, where, false, 0},
#define TWICE(tools, key, other, where) {tools, KEY_run_##key, NULL, where, true, KEY_run_##other},
const ForeignDefault foreign_defaults[] = {
#include "port/foreign.def"
};
const size_t num_foreign_defaults = sizeof foreign_defaults / sizeof *foreign_defaults;

static const struct {
    unsigned    tool;
    const char *name, *title;
} tools[] = {{AXOLOTL, "axolotl", "Axolotl"},
             {LLAMAFACTORY, "llamafactory", "LLaMA-Factory"},
             {FACTORY_V1, "llamafactory-v1", "LLaMA-Factory v1"},
             {TRL, "trl", "TRL"}};
enum { NUM_TOOLS = sizeof tools / sizeof *tools };

const char *foreign_title(unsigned tool)
{
    for (int i = 0; i < NUM_TOOLS; i++)
        if (tools[i].tool == tool) return tools[i].title;
    return "another tool";
}

Status foreign_find(const char *name, unsigned *out_tool)
{
    const char *names[NUM_TOOLS];
    int         index;
    for (int i = 0; i < NUM_TOOLS; i++) names[i] = tools[i].name;
    TRY(find_name("tool", name, names, NUM_TOOLS, &index));
    *out_tool = tools[index].tool;
    return OK;
}

static bool fits_text(const char *pattern, const YamlNode *value)
{
    bool on;
    if (value->type != YAML_SCALAR) return false;
    const char *text = value->text.data;
    if (value->is_plain && bool_read(text, &on)) text = on ? "true" : "false";
    return fnmatch(pattern, text, 0) == 0;
}

/* Whether the value fits. One fitting item of a list is enough: if rows differ by value, port_value looks for a row for each item. */
static bool fits_value(const char *pattern, const YamlNode *value)
{
    if (!pattern) return true;
    if (value->type != YAML_SEQUENCE) return fits_text(pattern, value);
    bool fits = false;
    for (size_t i = 0; i < value->count; i++) fits |= fits_text(pattern, value->items[i]);
    return fits;
}

const ForeignKey *foreign_row(unsigned tool, OptionScope scope, const char *name, const YamlNode *value)
{
    for (size_t i = 0; i < num_foreign_keys; i++) {
        const ForeignKey *row = &foreign_keys[i];
        if ((row->tools & tool) && row->scope == scope && fnmatch(row->name, name, 0) == 0 && fits_value(row->value, value)) return row;
    }
    return NULL;
}

const ForeignKey *foreign_next(const ForeignKey *row, unsigned tool)
{
    const ForeignKey *next = row + 1;
    bool              is_same = next < foreign_keys + num_foreign_keys && next->scope == row->scope && (next->tools & tool);
    return is_same && row->value && next->value && strcmp(next->name, row->name) == 0 && strcmp(next->value, row->value) == 0 ? next : NULL;
}

const char *foreign_nearest(unsigned tool, OptionScope scope, const char *name)
{
    enum { MOST_NAMES = 1024 };
    const char *names[MOST_NAMES];
    size_t      count = 0;
    for (size_t i = 0; i < num_foreign_keys && count < MOST_NAMES; i++)
        if ((foreign_keys[i].tools & tool) && foreign_keys[i].scope == scope && !strpbrk(foreign_keys[i].name, "*?["))
            names[count++] = foreign_keys[i].name;
    return nearest_name(name, names, count);
}

/* The tools that have a key of exactly this name. Patterns don't count: too many names match them. */
static unsigned owners(const char *name)
{
    unsigned found = 0;
    for (size_t i = 0; i < num_foreign_keys; i++)
        if (foreign_keys[i].scope == SCOPE_run && strcmp(foreign_keys[i].name, name) == 0) found |= foreign_keys[i].tools;
    return found;
}

unsigned foreign_recognise(const YamlNode *root, const char **out_key)
{
    int         counts[NUM_TOOLS] = {0}, best = 0;
    const char *first[NUM_TOOLS] = {0};
    for (size_t i = 0; root->type == YAML_MAPPING && i < root->count; i++) {
        if (root->keys[i]->type != YAML_SCALAR) continue;
        const char *name = root->keys[i]->text.data;
        unsigned    owner = option_find(SCOPE_run, name) ? 0 : owners(name);
        for (int t = 0; t < NUM_TOOLS; t++) {
            if (owner != tools[t].tool) continue;
            if (!counts[t]++) first[t] = name;
            if (counts[t] > counts[best]) best = t;
        }
    }
    for (int t = 0; t < NUM_TOOLS; t++)
        if (t != best && counts[t] == counts[best]) return 0;
    if (out_key) *out_key = first[best];
    return counts[best] ? tools[best].tool : 0;
}
