/* Reads the weights of a GGUF file into a model folder's tensors, and does the whole import. */
#include "model/gguf_import.h"

#include "base/log.h"
#include "base/scoped.h"
#include "model/gguf_import_internal.h"
#include "model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Status gguf_is_file(const char *path, bool *out)
{
    char  magic[4] = {0};
    FILE *file;
    bool  is_dir;
    *out = false;
    TRY(file_is_dir(path, &is_dir));
    if (is_dir || !(file = fopen(path, "rb"))) return OK;
    *out = fread(magic, 1, sizeof magic, file) == sizeof magic && memcmp(magic, "GGUF", 4) == 0;
    fclose(file);
    return OK;
}

/* ---- tensors ---- */

typedef struct Source {
    const GgufTensor *tensor;
    GgufPlace         place;
    bool              is_transposed;
} Source;

typedef struct Weights {
    Import        *import;
    const HfModel *model;
    Source        *sources;
    StDecl        *decls;
    size_t         count;
} Weights;

static StDType stored_as(const Import *import, const GgufTensor *tensor, int ndim)
{
    if (tensor->type == GGUF_F32 || ndim < 2) return ST_F32;
    if (tensor->type == GGUF_F16) return ST_F16;
    return tensor->type == GGUF_BF16 || import->quantised == DT_BF16 ? ST_BF16 : ST_F32;
}

static Status check_shape(const Weights *weights, const Param *param, const GgufTensor *tensor, const GgufPlace *place)
{
    bool same = tensor->ndim == param->type.ndim;
    for (int i = 0; same && i < tensor->ndim; i++) same = tensor->dim[i] == param->type.dim[i];
    FAIL_IF(!same, ERR_INVALID, "%s: tensor %s has another shape than the file's keys give it", weights->import->path, place->name);
    return OK;
}

static Status add_param(Weights *weights, const Param *param)
{
    Import         *import = weights->import;
    const HfSource *saved = param_saved(param);
    Source         *source = &weights->sources[weights->count];
    StDecl         *decl = &weights->decls[weights->count++];
    FAIL_IF(saved->kind != HF_WHOLE && saved->kind != HF_TRANSPOSE, ERR_UNSUPPORTED, "%s: %s isn't read from a GGUF file", import->path,
            saved->names[0]);
    TRY(gguf_place(&import->arena, import->family, saved->names[0], &source->place));
    source->tensor = gguf_find(import->file, source->place.name);
    FAIL_IF(!source->tensor, ERR_INVALID, "%s: tensor %s is missing", import->path, source->place.name);
    TRY(check_shape(weights, param, source->tensor, &source->place));
    source->is_transposed = saved->kind == HF_TRANSPOSE;
    *decl = st_decl(saved->names[0], stored_as(import, source->tensor, param->type.ndim), param->type.ndim, param->type.dim,
                    source->is_transposed);
    return OK;
}

/* Checks that every tensor of the file is one of the model's, or was read with the keys (rope_...). */
static Status check_unread(const Weights *weights)
{
    const GgufFile *file = weights->import->file;
    for (size_t i = 0; i < gguf_count(file); i++) {
        const GgufTensor *tensor = gguf_at(file, i);
        bool              known = tensor->name.len > 5 && memcmp(tensor->name.data, "rope_", 5) == 0;
        for (size_t k = 0; k < weights->count && !known; k++) known = weights->sources[k].tensor == tensor;
        FAIL_IF(!known, ERR_UNSUPPORTED, "%s: tensor %.*s isn't one of a model of the family %s", weights->import->path,
                GGUF_SHOWN(tensor->name, 200), weights->import->family->written);
    }
    return OK;
}

static void decode_row(const GgufTensor *tensor, int64_t row, int64_t cols, float *out)
{
    int64_t bytes = gguf_bytes(tensor->type, cols);
    gguf_decode(tensor->type, (const char *)tensor->data + row * bytes, cols, out);
}

/* The file's row that becomes row `row` of the folder: the inverse of gguf_permuted_row. */
static int64_t row_in_file(const Weights *weights, const Source *source, int64_t row)
{
    bool turns = weights->import->family->traits & GGUF_PERMUTES && (source->place.role == GGUF_Q || source->place.role == GGUF_K);
    if (!turns) return row;
    int64_t width = (int64_t)gguf_dim(weights->model, "D"), head = row / width, at = row % width;
    return head * width + at % (width / 2) * 2 + at / (width / 2);
}

static Status append_floats(const StDecl *decl, const float *values, int64_t count, FileWriter *out)
{
    DType dtype;
    CHECK(st_dtype_to(decl->dtype, &dtype));
    FAIL_IF(dtype_first_unfit(dtype, values, count) < count, ERR_INVALID, "tensor %s holds values that aren't finite", decl->name);
    return weights_append_floats(dtype, values, count, out);
}

static Status append_turned(const StDecl *decl, const Source *source, FileWriter *out)
{
    int64_t                    rows = source->tensor->dim[0], cols = source->tensor->dim[1];
    size_t                     bytes = (size_t)(rows * cols) * sizeof(float);
    SCOPED(scoped_free) float *values = malloc(bytes);
    SCOPED(scoped_free) float *turned = malloc(bytes);
    FAIL_IF(!values || !turned, ERR_NO_FIT, "no memory to transpose tensor %s", decl->name);
    gguf_decode(source->tensor->type, source->tensor->data, rows * cols, values);
    transpose_floats(values, rows, cols, turned);
    return append_floats(decl, turned, rows * cols, out);
}

static Status append_tensor(void *context, size_t index, FileWriter *out)
{
    const Weights *weights = context;
    const Source  *source = &weights->sources[index];
    const StDecl  *decl = &weights->decls[index];
    int64_t        cols = source->tensor->dim[source->tensor->ndim - 1], rows = source->tensor->numel / cols;
    bool           is_shifted = weights->import->family->traits & GGUF_NORMS_ADD_ONE && source->place.role == GGUF_NORM;
    if (source->is_transposed) return append_turned(decl, source, out);
    SCOPED_ARRAY(float, values, cols);
    for (int64_t row = 0; row < rows; row++) {
        decode_row(source->tensor, row_in_file(weights, source, row), cols, values);
        for (int64_t i = 0; is_shifted && i < cols; i++) values[i] -= 1;
        TRY(append_floats(decl, values, cols, out));
    }
    return OK;
}

static Status write_weights(Import *import, const HfModel *model)
{
    Graph  *graph;
    Weights weights = {.import = import, .model = model};
    TRY(hf_model_bind(&import->arena, model, DT_F32, &graph));
    weights.sources = arena_array(&import->arena, Source, graph->num_params);
    weights.decls = arena_array(&import->arena, StDecl, graph->num_params);
    for (int i = 0; i < graph->num_params; i++) TRY(add_param(&weights, graph->params[i]));
    TRY(check_unread(&weights));
    return st_write_folder(import->folder, "model", weights.decls, weights.count, 5000000000, append_tensor, &weights);
}

/* ---- the whole ---- */

static Status import_family(Import *import)
{
    Str  name, type = {"model", 5};
    bool is_known = gguf_get_str(import->file, "general.architecture", &name);
    FAIL_IF(!is_known, ERR_INVALID, "%s: general.architecture is missing", import->path);
    gguf_get_str(import->file, "general.type", &type);
    FAIL_IF(!str_equal(type, "model"), ERR_UNSUPPORTED, "%s holds no model: general.type is %.*s", import->path, GGUF_SHOWN(type, 40));
    import->family = gguf_family_of(name);
    FAIL_IF(!import->family, ERR_UNSUPPORTED, "%s: general.architecture %.*s isn't read; docs/gguf.md lists the families", import->path,
            GGUF_SHOWN(name, 40));
    return OK;
}

static Status import_all(Import *import)
{
    HfModel *model;
    TRY(import_family(import));
    TRY(gguf_import_config(import));
    TRY(gguf_import_tokenizer(import));
    Status status = hf_model_open(&import->arena, import->folder, &model);
    if (status != OK) return status_prefix(status, "%s", import->path);
    return write_weights(import, model);
}

Status gguf_import(const char *path, DType quantised, const char *folder)
{
    Import import = {.path = path, .folder = folder, .quantised = quantised};
    TRY(gguf_open(path, &import.file));
    Status status = import_all(&import);
    gguf_close(import.file);
    arena_deinit(&import.arena);
    return status;
}
