/* Runs passes alone: reads a graph and its options from text, runs passes by name, and prints the result as text. */
#include "passes/alone.h"

#include "ops/ops.h"
#include "passes/layout.h"
#include "passes/pass.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- options ---- */

typedef enum OptionKind {
    KIND_PROGRAM,
    KIND_INT,
    KIND_SMALL, /* the field is an int; with KIND_INT, an int64_t */
    KIND_FLOAT,
    KIND_BOOL,
    KIND_DTYPE,
    KIND_PARTS,
    KIND_FUSIONS,
    KIND_OFFLOADS,
    KIND_TARGETS,
    KIND_WHOLE,
    KIND_OPTIMIZER,
    KIND_FORMAT
} OptionKind;

/* The fields of CompileOptions that a text can set. programs[0] says which program the graph belongs to. */
static const struct {
    const char *name;
    OptionKind  kind;
    size_t      at;
} table[] = {
#define COMPILES(kind, name) {#name, KIND_##kind, offsetof(CompileOptions, name)},
#include "config/options.def"
    {"program", KIND_PROGRAM, offsetof(CompileOptions, programs[0])},
    {"batch", KIND_INT, offsetof(CompileOptions, programs[0].batch)},
    {"cache_len", KIND_INT, offsetof(CompileOptions, cache_len)},
    {"chunk_bytes", KIND_INT, offsetof(CompileOptions, chunk_bytes)},
    {"fp32_grads", KIND_BOOL, offsetof(CompileOptions, fp32_grads)},
    {"fp8_amax_history", KIND_INT, offsetof(CompileOptions, precision.amax_history)},
    {"fp8_cache", KIND_BOOL, offsetof(CompileOptions, fp8_cache)},
    {"fp8_own_scales", KIND_BOOL, offsetof(CompileOptions, precision.own_scales)},
    {"gradient_dtype", KIND_DTYPE, offsetof(CompileOptions, precision.backward)},
    {"head_bias", KIND_BOOL, offsetof(CompileOptions, head.has_bias)},
    {"head_dim", KIND_INT, offsetof(CompileOptions, head.dim)},
    {"head_dtype", KIND_DTYPE, offsetof(CompileOptions, head.dtype)},
    {"head_hidden", KIND_DTYPE, offsetof(CompileOptions, programs[0].hidden)},
    {"head_rows", KIND_INT, offsetof(CompileOptions, head.rows)},
    {"head_vocab", KIND_INT, offsetof(CompileOptions, head.vocab)},
    {"lora_alpha", KIND_FLOAT, offsetof(CompileOptions, lora.alpha)},
    {"lora_dropout", KIND_FLOAT, offsetof(CompileOptions, lora.dropout)},
    {"lora_rank", KIND_INT, offsetof(CompileOptions, lora.r)},
    {"lora_targets", KIND_TARGETS, offsetof(CompileOptions, lora)},
    {"lora_tie_whole", KIND_BOOL, offsetof(CompileOptions, lora.tie_whole)},
    {"lora_whole", KIND_WHOLE, offsetof(CompileOptions, lora)},
    {"master_dtype", KIND_DTYPE, offsetof(CompileOptions, master_dtype)},
    {"master_weights", KIND_BOOL, offsetof(CompileOptions, master_weights)},
    {"matmul_dtype", KIND_DTYPE, offsetof(CompileOptions, precision.forward)},
    {"micro_steps", KIND_INT, offsetof(CompileOptions, micro_steps)},
    {"moment_dtype", KIND_DTYPE, offsetof(CompileOptions, moment_dtype)},
    {"no_fuse", KIND_FUSIONS, offsetof(CompileOptions, no_fuse)},
    {"offload", KIND_OFFLOADS, offsetof(CompileOptions, offload)},
    {"optimizer", KIND_OPTIMIZER, offsetof(CompileOptions, optimizer)},
    {"piece_numel", KIND_INT, offsetof(CompileOptions, piece_numel)},
    {"quantise", KIND_FORMAT, offsetof(CompileOptions, weight_format)},
    {"rank", KIND_SMALL, offsetof(CompileOptions, rank)},
    {"recompute", KIND_PARTS, offsetof(CompileOptions, recompute)},
    {"sampling_best", KIND_SMALL, offsetof(CompileOptions, sampling.best)},
    {"sampling_biases", KIND_SMALL, offsetof(CompileOptions, sampling.biases)},
    {"sampling_guides", KIND_BOOL, offsetof(CompileOptions, sampling.guides)},
    {"sampling_penalties", KIND_BOOL, offsetof(CompileOptions, sampling.penalties)},
    {"sampling_vocab", KIND_INT, offsetof(CompileOptions, sampling.vocab)},
    {"skip_quant_first_layers", KIND_INT, offsetof(CompileOptions, precision.skip_first)},
    {"skip_quant_last_layers", KIND_INT, offsetof(CompileOptions, precision.skip_last)},
    {"split_k", KIND_BOOL, offsetof(CompileOptions, split_k)},
    {"use_dora", KIND_BOOL, offsetof(CompileOptions, lora.use_dora)},
    {"use_rslora", KIND_BOOL, offsetof(CompileOptions, lora.use_rslora)},
    {"whole_bytes", KIND_INT, offsetof(CompileOptions, whole_bytes)},
    {"world", KIND_SMALL, offsetof(CompileOptions, world)},
    {"zero_level", KIND_SMALL, offsetof(CompileOptions, zero_level)},
};
enum { NUM_OPTIONS = sizeof table / sizeof table[0], MAX_WHOLE = 1 << 20 };

/* Splits a text into the words between commas. Returns their number. */
static size_t split_list(Arena *arena, const char *text, const char ***out)
{
    size_t count = 1;
    for (const char *at = text; *at; at++) count += *at == ',';
    *out = arena_array(arena, const char *, count);
    for (size_t i = 0; i < count; i++) {
        size_t len = strcspn(text, ",");
        (*out)[i] = arena_strndup(arena, text, len);
        text += len + (text[len] == ',');
    }
    return count;
}

static Status read_bits(Arena *arena, const char *what, const char *text, const char *const *names, size_t count, uint32_t *out)
{
    const char **words;
    size_t       num = split_list(arena, text, &words);
    for (size_t i = 0; i < num; i++) {
        int bit;
        TRY(find_name(what, words[i], names, count, &bit));
        *out |= 1u << bit;
    }
    return OK;
}

static Status read_number(OptionKind kind, const char *text, void *out)
{
    char  *end;
    double number;
    errno = 0;
    number = strtod(text, &end);
    bool whole = kind != KIND_FLOAT;
    FAIL_IF(end == text || *end || errno, ERR_INVALID, "expected a number, found %s", text);
    FAIL_IF(whole && !(number >= 1 && number <= MAX_WHOLE && number == (double)(int64_t)number), ERR_INVALID,
            "expected a whole number from 1 to %d, found %s", MAX_WHOLE, text);
    if (kind == KIND_SMALL)
        *(int *)out = (int)number;
    else if (whole)
        *(int64_t *)out = (int64_t)number;
    else
        *(double *)out = number;
    return OK;
}

static Status read_format(const char *text, const WeightFormat **out)
{
    enum { MOST = 8 };
    const char *names[MOST];
    size_t      count = 0;
    int         index;
    for (; weight_format_at((int)count); count++) names[count] = weight_format_at((int)count)->name;
    TRY(find_name("format", text, names, count, &index));
    *out = weight_format_at(index);
    return OK;
}

static Status read_option(Arena *arena, OptionKind kind, const char *text, void *out)
{
    const char *parts[PART_COUNT], *fusions[FUSION_COUNT], *offloads[OFFLOAD_COUNT], *optimizers[OPTIMIZER_COUNT],
        *yes_no[] = {"false", "true"};
    int index = 0;
    for (int i = 0; i < PART_COUNT; i++) parts[i] = part_name((Part)i);
    for (int i = 0; i < FUSION_COUNT; i++) fusions[i] = fusion_name((Fusion)i);
    for (int i = 0; i < OFFLOAD_COUNT; i++) offloads[i] = offload_name((Offload)i);
    for (int i = 0; i < OPTIMIZER_COUNT; i++) optimizers[i] = optimizer_name((OptimizerKind)i);
    switch (kind) {
    case KIND_PROGRAM:
        return program_find(text, out);
    case KIND_INT:
    case KIND_SMALL:
    case KIND_FLOAT:
        return read_number(kind, text, out);
    case KIND_BOOL:
        TRY(find_name("value", text, yes_no, 2, &index));
        *(bool *)out = index;
        break;
    case KIND_DTYPE:
        FAIL_IF(!dtype_parse(text, out), ERR_INVALID, "expected a dtype, found %s", text);
        break;
    case KIND_PARTS:
        return read_bits(arena, "part", text, parts, PART_COUNT, out);
    case KIND_FUSIONS:
        return read_bits(arena, "fusion", text, fusions, FUSION_COUNT, out);
    case KIND_OFFLOADS:
        return read_bits(arena, "offload", text, offloads, OFFLOAD_COUNT, out);
    case KIND_TARGETS: {
        const char **words;
        LoraOptions *lora = out;
        lora->num_targets = (int)split_list(arena, text, &words);
        lora->targets = words;
        lora->enabled = true;
        break;
    }
    case KIND_WHOLE: {
        const char **words;
        LoraOptions *lora = out;
        lora->num_whole = (int)split_list(arena, text, &words);
        lora->whole = words;
        break;
    }
    case KIND_OPTIMIZER:
        TRY(find_name("optimizer", text, optimizers, OPTIMIZER_COUNT, &index));
        *(OptimizerKind *)out = (OptimizerKind)index;
        break;
    case KIND_FORMAT:
        return read_format(text, out);
    }
    return OK;
}

/* *out_gpu: the known GPU to plan for. */
static Status set_option(Arena *arena, const char *name, const char *value, CompileOptions *options, const char **out_gpu)
{
    const char *names[NUM_OPTIONS + 1];
    int         index;
    for (int i = 0; i < NUM_OPTIONS; i++) names[i] = table[i].name;
    names[NUM_OPTIONS] = "gpu";
    TRY(find_name("option", name, names, NUM_OPTIONS + 1, &index));
    if (index == NUM_OPTIONS) *out_gpu = value;
    if (index == NUM_OPTIONS) return OK;
    Status status = read_option(arena, table[index].kind, value, (char *)options + table[index].at);
    return status == OK ? OK : status_prefix(status, "option %s", name);
}

/* The lines `# option NAME=VALUE` among the comments before the graph. */
static Status read_options(Arena *arena, const char *file, const char *text, size_t len, CompileOptions *options, const char **out_gpu)
{
    static const char mark[] = "# option ";
    const char       *end = text + len;
    for (int line = 1; text < end && (*text == '#' || *text == '\n'); line++) {
        const char *eol = memchr(text, '\n', (size_t)(end - text));
        if (!eol) eol = end;
        if ((size_t)(eol - text) >= sizeof mark - 1 && memcmp(text, mark, sizeof mark - 1) == 0) {
            char *name = arena_strndup(arena, text + sizeof mark - 1, (size_t)(eol - text) - (sizeof mark - 1));
            char *equals = strchr(name, '=');
            FAIL_IF(!equals, ERR_INVALID, "%s:%d:%zu: expected # option NAME=VALUE", file, line, sizeof mark);
            *equals = 0;
            Status status = set_option(arena, name, equals + 1, options, out_gpu);
            if (status != OK) return status_prefix(status, "%s:%d:%zu", file, line, sizeof mark);
        }
        text = eol < end ? eol + 1 : end;
    }
    return OK;
}

/* ---- results of place and emit ---- */

static void print_placements(const Program *program, StrBuf *out)
{
    for (int i = 0; i < program->graph->num_values; i++) {
        const Value     *value = program->graph->values[i];
        const Placement *place = &program->placement[i];
        if (value->kind == VALUE_ACTIVATION && !value->producer) continue;
        strbuf_printf(out, "# %s: %s %s, %lld bytes at %lld\n", value->name, space_name(place->space), region_name(place->region),
                      (long long)place->bytes, (long long)place->offset);
    }
    strbuf_printf(out, "# activations: %lld bytes, at most %lld alive\n", (long long)program->activation_bytes,
                  (long long)program->live_bytes);
}

static const char *launch_name(const Launch *launch)
{
    const Value *out = node_first_out(launch->node);
    return out ? out->name : launch->node->op->name;
}

static void print_launches(const Program *program, StrBuf *out)
{
    for (int i = 0; i < program->num_once; i++) strbuf_printf(out, "# once %s\n", launch_name(&program->once[i]));
    for (int i = 0; i < program->num_launches; i++) {
        const Launch *launch = &program->launches[i];
        strbuf_printf(out, "# launch %s on %s", launch_name(launch), stream_name(launch->stream));
        for (int s = 0; s < STREAM_COUNT; s++)
            if (launch->wait[s]) strbuf_printf(out, " after %s", launch_name(&program->launches[launch->wait[s] - 1]));
        strbuf_putc(out, '\n');
    }
}

/* ---- running ---- */

/* Runs one pass. The passes that make the optimizer's or the load program, and the passes that place, need the layout of the graph's
 * values: it is added before the first of them. */
static Status run_one(PassContext *context, int index, bool *laid_out)
{
    Program *program = context->program;
    bool     makes_update = pass_scopes(index) == P_UPDATE, makes_load = pass_scopes(index) == P_WEIGHTS;
    if ((makes_update || makes_load || pass_after_layout(index)) && !*laid_out) {
        TRY(layout_add(context->plan, context->options, program->graph));
        *laid_out = true;
    }
    if (makes_update || makes_load) {
        program->spec.entry = makes_update ? &entry_optimizer : &entry_load;
        program->name = program_spec_name(&program->spec);
        *laid_out = false;
    }
    FAIL_IF(!(pass_scopes(index) & entry_scopes(program->spec.entry)), ERR_INVALID,
            "it doesn't run for %s; the line # option program=NAME says what the graph is of", program_spec_name(&program->spec));
    if (!pass_after_layout(index)) program->placement = NULL; /* once this pass has changed the graph, the placement no longer fits */
    program->num_launches = program->num_once = 0;
    return pass_run(context, index);
}

static Status run_all(PassContext *context, const int *indices, size_t count, StrBuf *out)
{
    Program *program = context->program;
    bool     laid_out = false;
    for (size_t i = 0; i < count; i++) {
        Status status = run_one(context, indices[i], &laid_out);
        if (status != OK) return status == ERR_INTERNAL ? status : status_prefix(status, "pass %s", pass_name(indices[i]));
    }
    graph_print(program->graph, out);
    if (program->placement) print_placements(program, out);
    print_launches(program, out);
    return OK;
}

Status passes_run_alone(Arena *arena, const char *file, const char *text, size_t len, const char *const *names, size_t count, StrBuf *out)
{
    CompileOptions options = compile_defaults();
    Program        program = {0};
    PassContext    context = {.arena = arena, .file = file, .options = &options, .program = &program};
    int           *indices = arena_array(arena, int, count + 1);
    const char    *gpu = NULL;
    options.verify = true;
    compile_add_micro(&options, 0, 2, 1, 1);
    for (size_t i = 0; i < count; i++) TRY(pass_find(names[i], &indices[i]));
    TRY(read_options(arena, file, text, len, &options, &gpu));
    program.spec = options.programs[0];
    program.name = program_spec_name(&program.spec);
    TRY(graph_parse(arena, file, text, len, op_table, OP_COUNT, &program.graph));
    TRY(device_null_create(gpu, &context.device));
    Status status = plan_start(arena, &options, context.device, &context.plan);
    if (status == OK) status = run_all(&context, indices, count, out);
    context.device->api->destroy(context.device);
    return status;
}
