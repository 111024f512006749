/* A model's tensors as GGUF has them: names, types, order of rows. Each tensor streams through, some rows at a time. */
#include "model/gguf_export.h"

#include "base/log.h"
#include "base/scoped.h"
#include "model/gguf_internal.h"
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- presets ---- */

typedef struct PresetInfo {
    const char *word;
    GgufType    type;
    uint32_t    file_type;
} PresetInfo;

static const PresetInfo presets[] = {
#define GGUF_PRESET(name, word, type, file_type) {word, GGUF_##type, file_type},
#include "model/gguf_presets.def"
#undef GGUF_PRESET
};

Status gguf_parse_preset(const char *word, GgufPreset *out)
{
    SCOPED_STRBUF(known);
    for (int i = 0; i < GGUF_NUM_PRESETS; i++) {
        *out = (GgufPreset)i;
        if (strcasecmp(word, presets[i].word) == 0) {
            return OK;
        }
        strbuf_printf(&known, "%s%s", known.len ? ", " : "", presets[i].word);
    }
    return status_fail(ERR_INVALID, "--type %s: expected one of %s", word, strbuf_cstr(&known));
}

/* ---- places ---- */

typedef struct PlaceRow {
    uint32_t    families;
    const char *tensor, *name;
    GgufRole    role;
} PlaceRow;

#define FAMILY(name) (1u << GGUF_FAMILY_##name)
#define ANY UINT32_MAX
static const PlaceRow place_rows[] = {
#define GGUF_TENSOR(families, tensor, name, role) {families, tensor, name, GGUF_##role},
#include "model/gguf_tensors.def"
#undef GGUF_TENSOR
};
#undef ANY
#undef FAMILY

/* Whether `name` is `pattern` with a number in place of {i}. *out_layer: that number; -1: the pattern has no {i}. */
static bool fits(const char *pattern, const char *name, int *out_layer)
{
    const char *index = strstr(pattern, "{i}");
    char       *end;
    *out_layer = -1;
    if (!index) return strcmp(pattern, name) == 0;
    size_t before = (size_t)(index - pattern);
    if (strncmp(pattern, name, before) != 0 || name[before] < '0' || name[before] > '9') return false;
    *out_layer = (int)strtol(name + before, &end, 10);
    return strcmp(index + 3, end) == 0;
}

Status gguf_place(Arena *arena, const GgufFamily *family, const char *tensor, GgufPlace *out)
{
    for (size_t i = 0; i < sizeof place_rows / sizeof *place_rows; i++) {
        const PlaceRow *row = &place_rows[i];
        const char     *index = strstr(row->name, "{i}");
        if (!(row->families >> family->id & 1) || !fits(row->tensor, tensor, &out->layer)) continue;
        out->role = row->role;
        out->name = index ? arena_printf(arena, "%.*s%d%s", (int)(index - row->name), row->name, out->layer, index + 3) : row->name;
        return OK;
    }
    FAIL(ERR_UNSUPPORTED, "tensor %s has no place in a GGUF file of the family %s", tensor, family->written);
}

int64_t gguf_permuted_row(int64_t row, int64_t width)
{
    int64_t head = row / width, at = row % width;
    return head * width + at % 2 * (width / 2) + at / 2;
}

/* ---- types ---- */

/* A tensor to write. */
typedef struct Output {
    const StTensor *tensor; /* NULL: write `factors` */
    const float    *factors;
    GgufPlace       place;
    bool            is_transposed; /* the file stores the transpose of the folder's tensor */
} Output;

typedef struct Exporter {
    Arena            *arena;
    HfModel          *model;
    const char       *dir, *name;
    const GgufFamily *family;
    GgufPreset        preset;
    ThreadPool       *pool;
    Output           *outputs; /* one for each tensor to write, in the order of `decls` */
    GgufDecl         *decls;
    size_t            count;
    bool              has_head; /* the head is a tensor of its own */
    size_t            num_fallbacks;
} Exporter;

/* The usual mix: the first and the last eighth of the layers get more bits, and so does every third layer between. */
static bool gets_more_bits(int64_t layer, int64_t layers)
{
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

static GgufType mixed_type(const Exporter *exporter, const GgufPlace *place)
{
    const HfModel *model = exporter->model;
    int64_t        layers = (int64_t)gguf_dim(model, "L");
    if (place->role == GGUF_QKV) return GGUF_Q5_K;
    if (place->role != GGUF_V && place->role != GGUF_DOWN) return GGUF_Q4_K;
    if (gets_more_bits(place->layer, layers)) return GGUF_Q6_K;
    bool is_70b = layers == 80 && gguf_dim(model, "H") != gguf_dim(model, "G"); /* v is small if query heads share its heads */
    return place->role == GGUF_V && is_70b ? GGUF_Q5_K : GGUF_Q4_K;
}

/* `type` if a row of `row` values is a whole number of its blocks, else the type to use in its place. */
static GgufType fallback(GgufType type, int64_t row)
{
    if (row % gguf_block(type) == 0) return type;
    GgufType smaller = type == GGUF_Q4_K ? GGUF_Q5_0 : type == GGUF_Q5_K ? GGUF_Q5_1 : GGUF_Q8_0;
    return row % gguf_block(smaller) == 0 ? smaller : GGUF_F16;
}

static GgufType choose_type(Exporter *exporter, const GgufPlace *place, int ndim, int64_t row)
{
    GgufType type = presets[exporter->preset].type;
    bool     is_head = place->role == GGUF_HEAD || (place->role == GGUF_EMBEDDING && !exporter->has_head);
    if (ndim < 2 || place->role == GGUF_NORM || place->role == GGUF_BIAS) return GGUF_F32;
    if (gguf_block(type) > 1 && type != GGUF_Q8_0 && is_head)
        type = GGUF_Q6_K;
    else if (exporter->preset == GGUF_PRESET_Q4_K_M)
        type = mixed_type(exporter, place);
    GgufType fitting = fallback(type, row);
    exporter->num_fallbacks += fitting != type;
    return fitting;
}

/* ---- which tensors ---- */

static Status add_param(Exporter *exporter, const Param *param)
{
    const HfSource *source = weights_source(exporter->model->weights, param);
    Output         *output = &exporter->outputs[exporter->count];
    FAIL_IF(source->kind == HF_CONCAT || source->kind == HF_SLICE, ERR_UNSUPPORTED,
            "%s: tensor %s is a part of another, which a GGUF file doesn't have so", exporter->model->dir, source->names[0]);
    TRY(st_require(exporter->model->weights, source->names[0], &output->tensor));
    TRY(gguf_place(exporter->arena, exporter->family, output->tensor->name, &output->place));
    output->is_transposed = source->kind == HF_TRANSPOSE;
    exporter->has_head |= output->place.role == GGUF_HEAD;
    GgufDecl *decl = &exporter->decls[exporter->count++];
    *decl = (GgufDecl){.name = output->place.name, .ndim = param->type.ndim};
    for (int i = 0; i < decl->ndim; i++) decl->dim[i] = param->type.dim[i];
    return OK;
}

static void add_factors(Exporter *exporter, const GgufFactors *factors)
{
    exporter->outputs[exporter->count] = (Output){.factors = factors->values};
    exporter->decls[exporter->count++] = (GgufDecl){.name = factors->name, .type = GGUF_F32, .ndim = 1, .dim = {factors->count}};
}

static Status add_params(Exporter *exporter)
{
    Graph *graph;
    TRY(hf_model_open_weights(exporter->model));
    TRY(hf_model_bind(exporter->arena, exporter->model, DT_F32, &graph));
    Plan plan = {.num_params = graph->num_params, .params = graph->params}; /* only the parameters are looked at */
    TRY(weights_check(&plan, exporter->model));
    size_t most = (size_t)graph->num_params + GGUF_MOST_FACTORS;
    exporter->outputs = arena_array(exporter->arena, Output, most);
    exporter->decls = arena_array(exporter->arena, GgufDecl, most);
    for (int i = 0; i < graph->num_params; i++) TRY(add_param(exporter, graph->params[i]));
    for (size_t i = 0; i < exporter->count; i++) {
        GgufDecl *decl = &exporter->decls[i];
        decl->type = choose_type(exporter, &exporter->outputs[i].place, decl->ndim, decl->dim[decl->ndim - 1]);
    }
    return OK;
}

/* ---- values ---- */

enum { PIECE_VALUES = 1 << 20 };

/* Some rows of a tensor: as floats, and as the blocks to write. */
typedef struct Piece {
    const GgufDecl *decl;
    int64_t         rows, cols;
    float          *values;
    uint8_t        *blocks;
} Piece;

static void encode_row(void *context, int64_t row, int worker)
{
    (void)worker;
    const Piece *piece = context;
    size_t       bytes = (size_t)gguf_bytes(piece->decl->type, piece->cols);
    gguf_encode(piece->decl->type, piece->values + row * piece->cols, piece->cols, piece->blocks + (size_t)row * bytes);
}

/* The folder's row that becomes row `row` of the file. */
static int64_t row_of(const Exporter *exporter, const Output *output, int64_t row)
{
    bool turns = exporter->family->traits & GGUF_PERMUTES && (output->place.role == GGUF_Q || output->place.role == GGUF_K);
    return turns ? gguf_permuted_row(row, (int64_t)gguf_dim(exporter->model, "D")) : row;
}

/* Reads piece->rows rows, from row `first` of the file on. whole: the whole transpose, if the file stores the transpose; else NULL. */
static Status read_rows(const Exporter *exporter, const Output *output, const float *whole, int64_t first, Piece *piece)
{
    int64_t cols = piece->cols;
    if (whole) {
        memcpy(piece->values, whole + first * cols, (size_t)(piece->rows * cols) * sizeof *whole);
        return OK;
    }
    for (int64_t row = 0; row < piece->rows; row++)
        TRY(st_to_f32(output->tensor, row_of(exporter, output, first + row) * cols, cols, piece->values + row * cols));
    if (exporter->family->traits & GGUF_NORMS_ADD_ONE && output->place.role == GGUF_NORM)
        for (int64_t i = 0; i < piece->rows * cols; i++) piece->values[i] += 1;
    return OK;
}

static Status check_values(const Output *output, const Piece *piece)
{
    bool    is_wide = piece->decl->type == GGUF_F32 || piece->decl->type == GGUF_BF16;
    DType   as = piece->decl->type == GGUF_F32 ? DT_F32 : is_wide ? DT_BF16 : DT_F16;
    int64_t numel = piece->rows * piece->cols, at = dtype_first_unfit(as, piece->values, numel);
    FAIL_IF(at < numel, ERR_INVALID, "%s: tensor %s holds %g, which %s can't hold%s", output->tensor->path, output->tensor->name,
            piece->values[at], gguf_type_name(piece->decl->type), is_wide ? "" : "; take --type bf16 or f32");
    return OK;
}

/* *out: the tensor's transpose, which the caller frees. */
static Status turned(const Output *output, float **out)
{
    const StTensor            *tensor = output->tensor;
    size_t                     bytes = (size_t)tensor->numel * sizeof **out;
    SCOPED(scoped_free) float *values = malloc(bytes);
    *out = malloc(bytes);
    FAIL_IF(!values || !*out, ERR_NO_FIT, "no memory to transpose tensor %s", tensor->name);
    TRY(st_to_f32(tensor, 0, tensor->numel, values));
    transpose_floats(values, tensor->dim[0], tensor->dim[1], *out);
    return OK;
}

static Status append_tensor(void *context, size_t index, FileWriter *out)
{
    const Exporter            *exporter = context;
    const Output              *output = &exporter->outputs[index];
    const GgufDecl            *decl = &exporter->decls[index];
    int64_t                    cols = decl->dim[decl->ndim - 1], rows = gguf_decl_numel(decl) / cols;
    int64_t                    most = PIECE_VALUES / cols > 1 ? PIECE_VALUES / cols : 1;
    SCOPED(scoped_free) float *whole = NULL;
    if (output->factors) return file_writer_append(out, output->factors, (size_t)cols * sizeof *output->factors);
    if (output->is_transposed) TRY(turned(output, &whole));
    SCOPED_ARRAY(float, values, most *cols);
    SCOPED_ARRAY(uint8_t, blocks, gguf_bytes(decl->type, most * cols));
    Piece piece = {.decl = decl, .cols = cols, .values = values, .blocks = blocks};
    for (int64_t first = 0; first < rows; first += most) {
        piece.rows = rows - first < most ? rows - first : most;
        TRY(read_rows(exporter, output, whole, first, &piece));
        TRY(check_values(output, &piece));
        pool_run(exporter->pool, piece.rows, encode_row, &piece);
        TRY(file_writer_append(out, blocks, (size_t)gguf_bytes(decl->type, piece.rows * cols)));
    }
    return OK;
}

/* ---- the file ---- */

static void put_general(const Exporter *exporter, GgufKeys *keys)
{
    gguf_put_str(keys, "general.architecture", str_of(exporter->family->written));
    gguf_put_str(keys, "general.type", str_of("model"));
    gguf_put_u32(keys, "general.file_type", presets[exporter->preset].file_type);
    if (gguf_block(presets[exporter->preset].type) > 1) gguf_put_u32(keys, "general.quantization_version", 2);
}

static Status collect(Exporter *exporter, GgufKeys *keys)
{
    GgufFactors factors[GGUF_MOST_FACTORS];
    int         num_factors;
    TRY(gguf_find_family(exporter->model, &exporter->family));
    TRY(add_params(exporter));
    put_general(exporter, keys);
    TRY(gguf_put_model_keys(exporter->arena, exporter->model, exporter->family, keys, factors, &num_factors));
    for (int i = 0; i < num_factors; i++) add_factors(exporter, &factors[i]);
    return gguf_put_tokenizer(exporter->arena, exporter->model, exporter->dir, exporter->name, keys);
}

Status gguf_check_model(const HfModel *model)
{
    SCOPED_ARENA(arena);
    SCOPED(gguf_keys_deinit) GgufKeys keys = {0};
    const GgufFamily                 *family;
    GgufFactors                       factors[GGUF_MOST_FACTORS];
    int                               num_factors;
    TRY(gguf_find_family(model, &family));
    log_mute(true);
    Status status = gguf_put_model_keys(&arena, model, family, &keys, factors, &num_factors);
    if (status == OK) status = gguf_put_tokenizer(&arena, model, model->dir, "", &keys);
    log_mute(false);
    return status;
}

Status gguf_export(HfModel *model, const char *dir, const char *name, GgufPreset preset, const char *path, ThreadPool *pool)
{
    SCOPED_ARENA(arena);
    SCOPED(gguf_keys_deinit) GgufKeys keys = {0};
    Exporter exporter = {.arena = &arena, .model = model, .dir = dir, .name = name, .preset = preset, .pool = pool};
    TRY(collect(&exporter, &keys));
    if (exporter.num_fallbacks)
        log_note(NULL, false, "%zu of %zu tensors have rows that aren't whole blocks of their type; they are stored in a larger type",
                 exporter.num_fallbacks, exporter.count);
    return gguf_write(path, &keys, exporter.decls, exporter.count, append_tensor, &exporter);
}
