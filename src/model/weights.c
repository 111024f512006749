/* Reading weights: the pieces that the load program asks for, from the mapped file. */
#include "model/weights.h"

#include "base/compare.h"
#include "base/log.h"
#include "base/scoped.h"
#include "model/peft_tokens.h"
#include "ops/lowbit/fp8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- whether the file has what the parameters say ---- */

/* Whether the tensor has the type's shape, but with `rows` rows. A tensor without dims counts as one of shape (1). */
static bool shape_is(const StTensor *tensor, const TensorType *type, int64_t rows)
{
    if (!tensor->ndim) return type->ndim == 1 && rows == 1;
    if (tensor->ndim != type->ndim || tensor->dim[0] != rows) return false;
    for (int i = 1; i < tensor->ndim; i++)
        if (tensor->dim[i] != type->dim[i]) return false;
    return true;
}

static Status wrong_shape(const StTensor *tensor, const Param *param, int64_t rows)
{
    TensorType want = param->type;
    char       text[64], have[ST_SHAPE_BYTES];
    want.dim[0] = rows;
    return status_fail(ERR_INVALID, "%s: tensor %s has shape %s, %s %s", tensor->path, tensor->name,
                       st_shape_text(tensor->dim, tensor->ndim, have),
                       param->is_whole     ? "the model has"
                       : param->is_adapter ? "the adapter's rank and the model give"
                                           : "config.json says",
                       type_text(&want, text));
}

static Status check_dtype(const StTensor *tensor)
{
    FAIL_IF(!st_dtype_is_float(tensor->dtype), ERR_UNSUPPORTED,
            "%s: tensor %s is %s; expected F32, BF16, F16 or F64, or a quantization_config in config.json that says how it was quantised",
            tensor->path, tensor->name, st_dtype_name(tensor->dtype));
    return OK;
}

static Status check_transposed(const Param *param, const StTensor *tensor)
{
    FAIL_IF(tensor->made, ERR_UNSUPPORTED, "%s: tensor %s is quantised and transposed, which isn't read; take the unquantised model",
            tensor->path, tensor->name);
    FAIL_IF(tensor->ndim != 2 || tensor->dim[0] != param->type.dim[1] || tensor->dim[1] != param->type.dim[0], ERR_INVALID,
            "%s: tensor %s has another shape than [%lld,%lld], which config.json says", tensor->path, tensor->name,
            (long long)param->type.dim[1], (long long)param->type.dim[0]);
    return OK;
}

static Status check_rows(const Param *param, const HfSource *hf, const StTensor *tensor)
{
    FAIL_IF(tensor->ndim != 2 || tensor->dim[1] != param->type.dim[1], ERR_INVALID, "%s: tensor %s has no rows of %lld numbers",
            tensor->path, tensor->name, (long long)param->type.dim[1]);
    for (int64_t i = 0; i < hf->rows; i++)
        FAIL_IF(hf->ids[i] >= tensor->dim[0], ERR_INVALID, "%s: tensor %s has no row %lld", tensor->path, tensor->name,
                (long long)hf->ids[i]);
    return OK;
}

/* A file, and how its tensors are named. */
typedef struct FileSource {
    const StFile *file;
    const char   *prefix; /* prefix of the tensor names that parameters give */
    float        *column; /* scratch: a column of a transposed tensor, or scales */
    bool          halves; /* the file has adapters of twice the rank: the trained half is the first half of A's rows, and of B's columns */
    const LoraPairs *pairs; /* pairs whose products are subtracted from layers' weights; NULL: none */
} FileSource;

const HfSource *weights_source(const StFile *file, const Param *param)
{
    bool is_saved = param->saved.num_names && !st_find(file, param->hf.names[0]) && st_find(file, param->saved.names[0]);
    return is_saved ? &param->saved : &param->hf;
}

/* The names of a parameter's tensors. In an adapter's file they are those that the adapter is saved under. */
static const HfSource *source_of(const FileSource *source, const Param *param)
{
    return source->prefix[0] ? param_saved(param) : weights_source(source->file, param);
}

/* Finds tensor number `index` among the tensors that make up the parameter. */
static Status find_tensor(const FileSource *source, const Param *param, int index, const StTensor **out)
{
    SCOPED_STRBUF(name);
    strbuf_printf(&name, "%s%s", source->prefix, source_of(source, param)->names[index]);
    return st_require(source->file, strbuf_cstr(&name), out);
}

/* Whether the file's tensor has twice the parameter's rank: the trained half, then the half of a LoraPair. */
static bool is_half(const FileSource *source, const Param *param)
{
    return source->halves && !param->is_whole;
}

static Status check_half(const Param *param, const StTensor *tensor)
{
    const int64_t *dim = param->type.dim;
    bool           of_a = tensor->ndim == 2 && tensor->dim[0] == 2 * dim[0] && tensor->dim[1] == dim[1];
    bool           of_b = tensor->ndim == 2 && tensor->dim[0] == dim[0] && tensor->dim[1] == 2 * dim[1];
    FAIL_IF(
        !of_a && !of_b, ERR_INVALID,
        "%s: tensor %s isn't of twice this run's rank: is it of another lora_init or lora_rank? Go on with the settings it was made with",
        tensor->path, tensor->name);
    return check_dtype(tensor);
}

/* Checks that the file's tensors make up the parameter. */
static Status check_param(const FileSource *source, const Param *param)
{
    const HfSource *hf = source_of(source, param);
    int64_t         at = 0; /* rows of the tensors so far */
    for (int i = 0; i < hf->num_names; i++) {
        const StTensor *tensor;
        TRY(find_tensor(source, param, i, &tensor));
        if (is_half(source, param)) return check_half(param, tensor);
        TRY(check_dtype(tensor));
        if (hf->kind == HF_TRANSPOSE) return check_transposed(param, tensor);
        if (hf->kind == HF_ROWS) return check_rows(param, hf, tensor);
        bool    slice = hf->kind == HF_SLICE;
        int64_t rows = slice ? hf->total_rows : hf->kind == HF_WHOLE ? param->type.dim[0] : tensor->ndim ? tensor->dim[0] : 0;
        if (!shape_is(tensor, &param->type, rows)) return wrong_shape(tensor, param, rows);
        at += slice ? hf->rows : rows;
        FAIL_IF(at > param->type.dim[0], ERR_INVALID, "%s: tensor %s: its pieces have more rows than config.json says", tensor->path,
                tensor->name);
    }
    FAIL_IF(at != param->type.dim[0], ERR_INVALID, "%s: the pieces of %s have fewer rows than config.json says",
            st_count(source->file) ? st_at(source->file, 0)->path : "weights", hf->names[0]);
    return OK;
}

/* ---- elements of a parameter that check_param let pass ---- */

static Status begin_param(void *context, const Param *param)
{
    const FileSource *source = context;
    for (int i = 0; i < source_of(source, param)->num_names; i++) {
        const StTensor *tensor;
        TRY(find_tensor(context, param, i, &tensor));
        TRY(st_check_range(tensor, param->type.dtype));
    }
    return OK;
}

/* Consecutive elements of a tensor. */
typedef struct Run {
    const StTensor *tensor;
    int64_t         first, count;
} Run;

/* Finds where elements of the parameter from `first` on are: at most `most` elements, and only consecutive ones of a single tensor. */
static Status find_run(const FileSource *source, const Param *param, int64_t first, int64_t most, Run *out)
{
    const HfSource *hf = source_of(source, param);
    int64_t         cols = type_numel(&param->type) / param->type.dim[0], at = 0;
    for (int i = 0; i < hf->num_names; i++) {
        TRY(find_tensor(source, param, i, &out->tensor));
        if (hf->kind == HF_ROWS) { /* one row at a time */
            out->first = hf->ids[first / cols] * cols + first % cols;
            out->count = cols - first % cols < most ? cols - first % cols : most;
            return OK;
        }
        bool    slice = hf->kind == HF_SLICE;
        int64_t numel = slice ? hf->rows * cols : out->tensor->numel, left = at + numel - first;
        if (left > 0) {
            out->first = first - at + (slice ? hf->begin * cols : 0);
            out->count = left < most ? left : most;
            return OK;
        }
        at += numel;
    }
    FAIL(ERR_INTERNAL, "%s has no element %lld", param->name, (long long)first);
}

/* Reads rows [row, row + count) of a transposed parameter, which are columns of the tensor. */
static Status read_transposed(FileSource *source, const Param *param, int64_t row, int64_t count, float *out)
{
    const StTensor *tensor;
    int64_t         cols = param->type.dim[1];
    TRY(find_tensor(source, param, 0, &tensor));
    source->column = realloc_or_end(source->column, (size_t)count * sizeof *source->column);
    for (int64_t c = 0; c < cols; c++) {
        TRY(st_to_f32(tensor, c * param->type.dim[0] + row, count, source->column));
        for (int64_t r = 0; r < count; r++) out[r * cols + c] = source->column[r];
    }
    return OK;
}

/* Reads elements [first, first + count) of the trained half of a tensor that has twice the rank. */
static Status read_half(const FileSource *source, const Param *param, int64_t first, int64_t count, float *out)
{
    const StTensor *tensor;
    int64_t         cols = param->type.dim[1];
    TRY(find_tensor(source, param, 0, &tensor));
    if (tensor->dim[1] == cols) return st_to_f32(tensor, first, count, out);
    for (int64_t row = first / cols; row < (first + count) / cols; row++, out += cols) TRY(st_to_f32(tensor, 2 * row * cols, cols, out));
    return OK;
}

static Status read_stored(void *context, const Param *param, int64_t first, int64_t count, float *out)
{
    Run               run;
    const FileSource *source = context;
    int64_t           cols = type_numel(&param->type) / param->type.dim[0];
    if (is_half(source, param)) return read_half(source, param, first, count, out);
    if (source_of(source, param)->kind == HF_TRANSPOSE) return read_transposed(context, param, first / cols, count / cols, out);
    for (; count > 0; first += run.count, count -= run.count, out += run.count) {
        TRY(find_run(context, param, first, count, &run));
        TRY(st_to_f32(run.tensor, run.first, run.count, out));
    }
    return OK;
}

/* The pair whose product is subtracted from the parameter; NULL: none. */
static const LoraPair *taken_of(const FileSource *source, const Param *param)
{
    return param->is_linear && !param->is_adapter ? lora_pairs_find(source->pairs, param->module) : NULL;
}

static Status read_values(void *context, const Param *param, int64_t first, int64_t count, float *out)
{
    const LoraPair *taken = taken_of(context, param);
    TRY(read_stored(context, param, first, count, out));
    if (taken) lora_pair_subtract(taken, first, count, out);
    return OK;
}

static const void *find_stored(void *context, const Param *param, int64_t first, int64_t count)
{
    Run               run;
    DType             dtype;
    const FileSource *source = context;
    if (taken_of(source, param) || is_half(source, param)) return NULL;
    if (source_of(source, param)->kind == HF_TRANSPOSE || find_run(context, param, first, count, &run) != OK) return NULL;
    if (run.count < count || run.tensor->made || !st_is_aligned(run.tensor) || !st_dtype_to(run.tensor->dtype, &dtype) ||
        dtype != param->type.dtype)
        return NULL;
    return (const char *)run.tensor->data + dtype_bytes(dtype, run.first);
}

/* The parameter's tensor, if it is stored as codes; NULL: it isn't. */
static const QuantisedTensor *codes_of(const StFile *file, const Param *param)
{
    const HfSource *hf = weights_source(file, param);
    const StTensor *tensor = hf->kind == HF_WHOLE && !param->is_adapter ? st_find(file, hf->names[0]) : NULL;
    return tensor ? quantised_of(tensor) : NULL;
}

static const void *find_part(void *context, const Param *param, int k)
{
    FileSource            *source = context;
    const QuantisedTensor *codes = codes_of(source->file, param);
    return codes && quantised_weight_format(codes) == param->format ? quantised_part(codes, k, &source->column) : NULL;
}

static bool keeps_format(const void *context, const Param *param)
{
    const HfModel         *model = hf_model_of(context, param);
    const QuantisedTensor *codes = codes_of(model->weights, param);
    return codes && quantised_weight_format(codes) == model->weight_format;
}

void weights_use_format(const HfModel *model, bool is_asked, const WeightFormat *format, CompileOptions *options)
{
    bool stays = model->weight_format && (!is_asked || hf_model_has_format(model, format));
    options->weight_format = stays ? model->weight_format : format;
    options->keeps_format = stays ? keeps_format : NULL;
    options->keeps_format_model = model;
}

const WeightFormat *weights_made_format(const CompileOptions *options)
{
    return options->keeps_format ? NULL : options->weight_format;
}

static Status load_from(Session *session, bool adapters, const char *ns, FileSource *source)
{
    LoadSource load = {.context = source, .ns = ns, .begin = begin_param, .values = read_values, .stored = find_stored, .part = find_part};
    Status     status = session_load(session, adapters, &load);
    free(source->column);
    return status;
}

/* ---- tensors that nobody asked for ---- */

/* Whether a folder may hold this tensor although nothing reads it: the IR says so, or it is the copy of a tied head. */
static bool is_harmless(const HfModel *model, const char *name)
{
    for (int i = 0; i < model->num_ties; i++)
        if (strcmp(name, model->ties[i].untied) == 0) return true;
    return ir_module_is_unread(model->module, name);
}

/* Whether the parameter is read from the model's folder. */
static bool reads_param(const HfModel *model, const Param *param)
{
    return (!param->is_adapter || param->is_whole) && param_is_of(param, model->ns);
}

/* The first tensor that the model reads and the folder doesn't have; NULL: none. */
static const char *first_missing(const Plan *plan, const HfModel *model)
{
    for (int i = 0; i < plan->num_params; i++) {
        const HfSource *hf = weights_source(model->weights, plan->params[i]);
        for (int k = 0; k < hf->num_names && reads_param(model, plan->params[i]); k++)
            if (!st_find(model->weights, hf->names[k])) return hf->names[k];
    }
    return NULL;
}

static Status refuse_unexpected(const Plan *plan, const HfModel *model, int count, const char *names)
{
    const char *missing = first_missing(plan, model);
    return status_fail(ERR_INVALID, "%s: %d tensor%s that this model doesn't have: %s%s%s%s; is config.json the one of these weights?",
                       model->dir, count, count == 1 ? "" : "s", names, missing ? "; it looks for " : "", missing ? missing : "",
                       missing ? ", which isn't there" : "");
}

static Status check_unexpected(const Plan *plan, const HfModel *model)
{
    size_t count = 0, capacity = 0;
    for (int i = 0; i < plan->num_params; i++) capacity += (size_t)weights_source(model->weights, plan->params[i])->num_names;
    SCOPED_ARRAY(const char *, names, capacity + 1);
    for (int i = 0; i < plan->num_params; i++) {
        const HfSource *hf = weights_source(model->weights, plan->params[i]);
        for (int k = 0; k < hf->num_names && reads_param(model, plan->params[i]); k++) names[count++] = hf->names[k];
    }
    qsort(names, count, sizeof *names, compare_texts);
    SCOPED_STRBUF(list);
    int unexpected = 0;
    for (size_t i = 0; i < st_count(model->weights); i++) {
        const char *name = st_at(model->weights, i)->name;
        if (bsearch(&name, names, count, sizeof *names, compare_texts) || is_harmless(model, name)) continue;
        if (unexpected++ < 5) strbuf_printf(&list, "%s%s", list.len ? ", " : "", name);
    }
    if (unexpected > 5) strbuf_puts(&list, ", ...");
    return unexpected ? refuse_unexpected(plan, model, unexpected, strbuf_cstr(&list)) : OK;
}

Status weights_check(const Plan *plan, HfModel *model)
{
    TRY(hf_model_open_weights(model));
    TRY(check_unexpected(plan, model));
    FileSource source = {.file = model->weights, .prefix = ""};
    for (int i = 0; i < plan->num_params; i++)
        if (reads_param(model, plan->params[i])) TRY(check_param(&source, plan->params[i]));
    for (int i = 0; i < model->num_namespaces; i++) TRY(weights_check(plan, model->namespaces[i]));
    return OK;
}

typedef struct FiniteCheck {
    const HfModel *model;
    bool           failed; /* set if any tensor fails */
} FiniteCheck;

static void check_finite(void *context, int64_t index, int worker)
{
    FiniteCheck    *check = context;
    const StTensor *tensor = st_at(check->model->weights, (size_t)index);
    (void)worker;
    if (!is_harmless(check->model, tensor->name) && st_check_range(tensor, DT_F32) != OK)
        __atomic_store_n(&check->failed, true, __ATOMIC_RELAXED);
}

Status weights_check_finite(HfModel *model, ThreadPool *pool)
{
    FiniteCheck check = {.model = model};
    TRY(hf_model_open_weights(model));
    size_t count = st_count(model->weights);
    pool_run(pool, (int64_t)count, check_finite, &check);
    for (size_t i = 0; check.failed && i < count; i++) /* the first failing tensor gives the message, however many threads run */
        if (!is_harmless(model, st_at(model->weights, i)->name)) TRY(st_check_range(st_at(model->weights, i), DT_F32));
    return OK;
}

Status weights_read(const HfModel *model, const Param *param, float *out)
{
    FileSource source = {.file = model->weights, .prefix = ""};
    TRY(check_param(&source, param));
    Status status = read_values(&source, param, 0, type_numel(&param->type), out);
    free(source.column);
    return status;
}

Status weights_load(Session *session, HfModel *model)
{
    return weights_load_less(session, model, NULL);
}

Status weights_load_less(Session *session, HfModel *model, const LoraPairs *pairs)
{
    TRY(weights_check(session_plan(session), model));
    FileSource source = {.file = model->weights, .prefix = "", .pairs = pairs};
    TRY(load_from(session, false, model->ns, &source));
    return weights_load_namespaces(session, model);
}

Status weights_load_namespaces(Session *session, HfModel *model)
{
    for (int i = 0; i < model->num_namespaces; i++) TRY(weights_load(session, model->namespaces[i]));
    return OK;
}

/* ---- matrices that are quantised again ---- */

/* A matrix of the folder, and its codes with one scale, to be compared. */
typedef struct Again {
    const StTensor *tensor;
    const uint8_t  *codes;
    float           inverse; /* 1 / the scale */
    double         *squares; /* for each row: the sum of squared errors, and of squared values */
} Again;

static void compare_row(void *context, int64_t row, int worker)
{
    enum { CHUNK = 1024 };
    const Again *again = context;
    int64_t      cols = again->tensor->dim[1];
    float        want[CHUNK], have[CHUNK];
    double       error = 0, all = 0;
    (void)worker;
    for (int64_t col = 0; col < cols; col += CHUNK) {
        int64_t count = cols - col < CHUNK ? cols - col : CHUNK, at = row * cols + col;
        Status  status = st_to_f32(again->tensor, at, count, want);
        CHECK(status == OK); /* loading has read this tensor before */
        dtype_decode(DT_E4M3, again->codes + at, count, have);
        for (int64_t i = 0; i < count; i++) {
            double off = (double)(have[i] * again->inverse) - (double)want[i];
            error += off * off;
            all += (double)want[i] * (double)want[i];
        }
    }
    again->squares[2 * row] = error;
    again->squares[2 * row + 1] = all;
}

static Status compare_codes(Session *session, const StTensor *tensor, const char *name, float inverse, ThreadPool *pool, double *out)
{
    SCOPED_ARENA(arena);
    int64_t  rows = tensor->dim[0];
    uint8_t *codes = arena_alloc(&arena, (size_t)tensor->numel);
    Again    again = {tensor, codes, inverse, arena_array(&arena, double, 2 * rows)};
    double   error = 0, all = 0;
    TRY(session_read(session, name, codes, (size_t)tensor->numel));
    pool_run(pool, rows, compare_row, &again);
    for (int64_t row = 0; row < rows; row++) {
        error += again.squares[2 * row];
        all += again.squares[2 * row + 1];
    }
    *out = all > 0 ? sqrt(error / all) : 0;
    return OK;
}

static const Param *find_param(const Plan *plan, const char *name)
{
    int i = 0;
    while (strcmp(plan->params[i]->name, name) != 0) i++;
    return plan->params[i];
}

static Status compare_all(Session *session, const HfModel *model, ThreadPool *pool)
{
    const Plan *plan = session_plan(session);
    const char *worst = NULL;
    double      largest = 0;
    int         count = 0;
    for (int i = 0; i < plan->num_scaled; i++) {
        float scale[FP8_SCALE_FLOATS];
        TRY(session_read_range(session, PRECISION_SCALES, (size_t)i * sizeof scale, scale, sizeof scale));
        for (int k = 0; k < plan->scaled[i].num_params; k++) {
            const char  *name = plan->scaled[i].params[k];
            const Param *param = find_param(plan, name);
            double       error;
            bool         is_divided = plan_held(plan, name).numel < type_numel(&param->type); /* among ranks: no rank has all codes */
            if (is_divided || plan_find(plan, name)->type.dtype != DT_E4M3 || !codes_of(model->weights, param)) continue;
            TRY(compare_codes(session, st_find(model->weights, weights_source(model->weights, param)->names[0]), name, scale[FP8_INVERSE],
                              pool, &error));
            if (!count++ || error > largest) {
                largest = error;
                worst = name;
            }
        }
    }
    if (count)
        log_info("%s: %d matrices are quantised again, to FP8 with one scale a tensor; the largest relative error is %.3g (%s)", model->dir,
                 count, largest, worst);
    return OK;
}

Status weights_tell_requantised(Session *session, const HfModel *model)
{
    ThreadPool *pool;
    if (model->format == QUANTISED_NONE || !session_plan(session)->num_scaled) return OK;
    TRY(pool_create(0, &pool));
    Status status = compare_all(session, model, pool);
    pool_destroy(pool);
    return status;
}

/* ---- adapters ---- */

/* How many tensors hold token rows for which the plan has no parameter: these rows are put into the matrix itself. */
static size_t count_placed(const Plan *plan, const StFile *file)
{
    SCOPED_ARENA(arena);
    size_t count = 0;
    for (size_t i = 0; i < st_count(file); i++) count += peft_tokens_path(&arena, st_at(file, i)->name) != NULL;
    for (int i = 0; i < plan->num_params; i++)
        if (plan->params[i]->hf.kind == HF_ROWS) count = 0;
    return count;
}

static Status place_tokens(Session *session, const StFile *file, const char *folder)
{
    SCOPED_ARENA(arena);
    PeftAdapter adapter;
    TRY(peft_open(&arena, folder, &adapter));
    return peft_place_tokens(session, file, &adapter.lora);
}

/* Checks that the file's token rows are of the tokens that this run trains: the tensor of rows doesn't say which they are. */
static Status check_tokens(const Plan *plan, const char *folder)
{
    SCOPED_ARENA(arena);
    PeftAdapter adapter;
    bool        is_open = false;
    for (int i = 0; i < plan->num_params; i++) {
        const HfSource   *hf = &plan->params[i]->hf, *saved = param_saved(plan->params[i]);
        const LoraTokens *list;
        if (hf->kind != HF_ROWS) continue;
        if (!is_open) TRY(peft_open(&arena, folder, &adapter));
        is_open = true;
        list = peft_tokens_of(&adapter.lora, peft_tokens_path(&arena, arena_printf(&arena, "%s%s", PEFT_PREFIX, saved->names[0])));
        FAIL_IF(!list || list->num != hf->rows || memcmp(list->ids, hf->ids, (size_t)hf->rows * sizeof *hf->ids) != 0, ERR_INVALID,
                "%s: its rows of %s are of other tokens than this run trains (trainable_token_indices); expected the same "
                "ids in the same order",
                folder, hf->names[0]);
    }
    return OK;
}

static Status check_adapter(const Plan *plan, const FileSource *source, size_t num_placed, const char *folder)
{
    size_t used = num_placed + peft_num_unread(plan, source->file);
    for (int i = 0; i < plan->num_params; i++) {
        if (!plan->params[i]->is_adapter) continue;
        TRY(check_param(source, plan->params[i]));
        used++;
    }
    FAIL_IF(used != st_count(source->file), ERR_INVALID,
            "%s: %zu tensors, of which this model takes %zu: is it an adapter of another model, or are "
            "its target_modules others than adapter_config.json says?",
            folder, st_count(source->file), used);
    return check_tokens(plan, folder);
}

Status weights_load_adapter(Session *session, const char *folder)
{
    SCOPED(st_close_at) StFile *file = NULL;
    TRY(peft_open_tensors(folder, &file));
    FileSource source = {.file = file, .prefix = PEFT_PREFIX, .halves = session_plan(session)->adapters_take};
    size_t     num_placed = count_placed(session_plan(session), file);
    TRY(check_adapter(session_plan(session), &source, num_placed, folder));
    TRY(load_from(session, true, NULL, &source));
    return num_placed ? place_tokens(session, file, folder) : OK;
}
