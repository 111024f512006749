/* The words of the text form, which print.c writes and parse.c reads. */
#include "ir/graph_internal.h"

#include <string.h>

const char *const value_kind_names[] = {"input", "param", "act", "grad", "state", "cache", "const", "staged"};
const char *const space_names[] = {"device", "host"};
const char *const stream_names[] = {"compute", "copy_in", "copy_out", "comm"};
const char *const hint_names[] = {"none", "again", "save"};
const char *const hf_kind_names[] = {"whole", "concat", "slice", "transpose", "rows"};
const char *const init_kind_names[] = {"normal", "zeros", "ones", "uniform", "norms"};

const ParamFlag param_flags[] = {
    {"trained", offsetof(Param, trained)},
    {"decay", offsetof(Param, decay)},
    {"linear", offsetof(Param, is_linear)},
    {"head", offsetof(Param, is_head)},
    {"adapter", offsetof(Param, is_adapter)},
    {"whole", offsetof(Param, is_whole)},
    {0},
};

const NodeFlag node_flags[] = {
    {"backward", NODE_BACKWARD}, {"clone", NODE_CLONE}, {"once", NODE_ONCE}, {"at_use", NODE_AT_USE}, {0},
};

const char *space_name(Space space)
{
    return space_names[space];
}

const char *stream_name(Stream stream)
{
    return stream_names[stream];
}

const char *hint_name(Hint hint)
{
    return hint_names[hint];
}

static const char *const part_names[PART_COUNT] = {"none", "norm", "qkv", "att", "ffn", "swiglu", "block"};

const char *part_name(Part part)
{
    return part_names[part];
}

bool part_parse(const char *text, Part *out)
{
    for (int i = 0; i < PART_COUNT; i++) {
        if (strcmp(text, part_names[i]) != 0) continue;
        *out = (Part)i;
        return true;
    }
    return false;
}
