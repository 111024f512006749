/* Reading weights. A tensor is converted in chunks, straight from the map into the session. */
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_NUMEL = 1 << 18 };

/* Converts while writing to `name` from byte `offset` on. */
static Status write_as(Session *session, const char *name, size_t offset, DType dtype, const float *values, int64_t count)
{
    enum { PART = 4096 }; /* elements */
    if (dtype == DT_F32) return session_write_range(session, name, offset, values, (size_t)dtype_bytes(dtype, count));
    uint16_t converted[PART];
    for (int64_t i = 0; i < count; i += PART) {
        int64_t n = count - i < PART ? count - i : PART;
        CHECK(dtype_bytes(dtype, n) <= (int64_t)sizeof converted);
        dtype_encode(dtype, values + i, n, converted);
        TRY(session_write_range(session, name, offset + (size_t)dtype_bytes(dtype, i), converted, (size_t)dtype_bytes(dtype, n)));
    }
    return OK;
}

Status param_write(Session *session, const Param *param, int64_t first, const float *values, int64_t count)
{
    DType   dtype = param->type.dtype;
    int64_t at;
    TRY(write_as(session, param->name, (size_t)(dtype_bytes(dtype, first)), dtype, values, count));
    const PlanEntry *master = plan_master(session_plan(session), param, &at);
    if (!master) return OK;
    at += first;
    return write_as(session, master->name, (size_t)(dtype_bytes(master->type.dtype, at)), master->type.dtype, values, count);
}

/* ---- one tensor into (a part of) one parameter ---- */

static bool shape_is(const StTensor *tensor, const TensorType *type, int64_t rows)
{
    if (tensor->ndim != type->ndim || tensor->dim[0] != rows) return false;
    for (int i = 1; i < tensor->ndim; i++)
        if (tensor->dim[i] != type->dim[i]) return false;
    return true;
}

static Status wrong_shape(const StTensor *tensor, const TensorType *type, int64_t rows)
{
    TensorType want = *type;
    char       text[64];
    StrBuf     have = {0};
    want.dim[0] = rows;
    for (int i = 0; i < tensor->ndim; i++) strbuf_printf(&have, "%s%lld", i ? "," : "", (long long)tensor->dim[i]);
    Status status = status_fail(ERR_INVALID, "%s: tensor %s has shape [%s], config.json says %s", tensor->path, tensor->name,
                                strbuf_cstr(&have), type_text(&want, text));
    strbuf_deinit(&have);
    return status;
}

static Status check_dtype(const StTensor *tensor)
{
    FAIL_IF(!st_dtype_is_float(tensor->dtype), ERR_UNSUPPORTED,
            "%s: tensor %s is %s; expected F32, BF16, F16 or F64 (quantised weights aren't read)", tensor->path, tensor->name,
            st_dtype_name(tensor->dtype));
    return OK;
}

/* Elements [from, from + count) of the tensor to the parameter's elements at `at`. */
static Status copy_elements(Session *session, const Param *param, int64_t at, const StTensor *tensor, int64_t from, int64_t count,
                            float *chunk)
{
    for (int64_t i = 0; i < count; i += CHUNK_NUMEL) {
        int64_t n = count - i < CHUNK_NUMEL ? count - i : CHUNK_NUMEL;
        TRY(st_to_f32(tensor, from + i, n, chunk));
        TRY(param_write(session, param, at + i, chunk, n));
    }
    return OK;
}

static Status copy_transposed(Session *session, const Param *param, const StTensor *tensor)
{
    int64_t rows = param->type.dim[0], cols = param->type.dim[1];
    float  *all = malloc((size_t)(rows * cols) * sizeof *all);
    float  *row = malloc((size_t)cols * sizeof *row);
    FAIL_IF(!all || !row, ERR_NO_FIT, "no memory to transpose tensor %s", tensor->name);
    Status status = st_to_f32(tensor, 0, rows * cols, all);
    for (int64_t r = 0; r < rows && status == OK; r++) {
        for (int64_t c = 0; c < cols; c++) row[c] = all[c * rows + r];
        status = param_write(session, param, r * cols, row, cols);
    }
    free(all);
    free(row);
    return status;
}

static Status check_transposed(const Param *param, const StTensor *tensor)
{
    FAIL_IF(tensor->ndim != 2 || tensor->dim[0] != param->type.dim[1] || tensor->dim[1] != param->type.dim[0], ERR_INVALID,
            "%s: tensor %s has another shape than [%lld,%lld], which config.json says", tensor->path, tensor->name,
            (long long)param->type.dim[1], (long long)param->type.dim[0]);
    return OK;
}

/* Whether the file's tensors make up the parameter. */
static Status check_param(const StFile *file, const Param *param)
{
    const HfSource *hf = &param->hf;
    int64_t         at = 0; /* rows */
    for (int i = 0; i < hf->num_names; i++) {
        const StTensor *tensor;
        TRY(st_require(file, hf->names[i], &tensor));
        TRY(check_dtype(tensor));
        if (hf->kind == HF_TRANSPOSE) return check_transposed(param, tensor);
        bool    slice = hf->kind == HF_SLICE;
        int64_t rows = slice ? hf->total_rows : hf->kind == HF_WHOLE ? param->type.dim[0] : tensor->ndim ? tensor->dim[0] : 0;
        if (!shape_is(tensor, &param->type, rows)) return wrong_shape(tensor, &param->type, rows);
        at += slice ? hf->rows : rows;
        FAIL_IF(at > param->type.dim[0], ERR_INVALID, "%s: tensor %s: its pieces have more rows than config.json says", tensor->path,
                tensor->name);
    }
    FAIL_IF(at != param->type.dim[0], ERR_INVALID, "%s: the pieces of %s have fewer rows than config.json says",
            st_count(file) ? st_at(file, 0)->path : "weights", hf->names[0]);
    return OK;
}

/* Of a file that check_param let pass. */
static Status load_param(Session *session, const StFile *file, const Param *param, float *chunk)
{
    const HfSource *hf = &param->hf;
    int64_t         cols = type_numel(&param->type) / param->type.dim[0], at = 0;
    for (int i = 0; i < hf->num_names; i++) {
        const StTensor *tensor;
        TRY(st_require(file, hf->names[i], &tensor));
        TRY(st_check_range(tensor, param->type.dtype));
        if (hf->kind == HF_TRANSPOSE) return copy_transposed(session, param, tensor);
        bool    slice = hf->kind == HF_SLICE;
        int64_t take = slice ? hf->rows * cols : tensor->numel;
        TRY(copy_elements(session, param, at, tensor, slice ? hf->begin * cols : 0, take, chunk));
        at += take;
    }
    return OK;
}

/* ---- tensors that nobody asked for ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Tensors that files of these families may hold and that carry nothing: buffers of old versions, the copy of a tied head. */
static bool is_harmless(const HfModel *model, const char *name)
{
    static const char inv_freq[] = ".rotary_emb.inv_freq";
    size_t            len = strlen(name), tail = sizeof inv_freq - 1;
    if (len > tail && strcmp(name + len - tail, inv_freq) == 0) return true;
    return model->tied_head && strcmp(name, "lm_head.weight") == 0;
}

static Status check_unexpected(const Plan *plan, const HfModel *model)
{
    size_t       count = 0, capacity = 0;
    const char **names = NULL;
    for (int i = 0; i < plan->num_params; i++) capacity += (size_t)plan->params[i]->hf.num_names;
    names = malloc((capacity + 1) * sizeof *names);
    CHECK(names);
    for (int i = 0; i < plan->num_params; i++)
        for (int k = 0; k < plan->params[i]->hf.num_names && !plan->params[i]->is_adapter; k++)
            names[count++] = plan->params[i]->hf.names[k];
    qsort(names, count, sizeof *names, compare_names);
    StrBuf list = {0};
    int    unexpected = 0;
    for (size_t i = 0; i < st_count(model->weights); i++) {
        const char *name = st_at(model->weights, i)->name;
        if (bsearch(&name, names, count, sizeof *names, compare_names) || is_harmless(model, name)) continue;
        if (unexpected++ < 5) strbuf_printf(&list, "%s%s", list.len ? ", " : "", name);
    }
    free(names);
    Status status = OK;
    if (unexpected)
        status = status_fail(ERR_INVALID, "%s: %d tensor%s that this model doesn't have: %s%s; is config.json the one of these weights?",
                             model->dir, unexpected, unexpected == 1 ? "" : "s", strbuf_cstr(&list), unexpected > 5 ? ", ..." : "");
    strbuf_deinit(&list);
    return status;
}

Status weights_check(const Plan *plan, HfModel *model)
{
    TRY(hf_model_open_weights(model));
    TRY(check_unexpected(plan, model));
    for (int i = 0; i < plan->num_params; i++)
        if (!plan->params[i]->is_adapter) TRY(check_param(model->weights, plan->params[i]));
    return OK;
}

typedef struct FiniteCheck {
    const HfModel *model;
    bool           failed; /* some tensor */
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
    for (size_t i = 0; check.failed && i < count; i++) /* the message of the first, whatever the threads */
        if (!is_harmless(model, st_at(model->weights, i)->name)) TRY(st_check_range(st_at(model->weights, i), DT_F32));
    return OK;
}

Status weights_load(Session *session, HfModel *model)
{
    const Plan *plan = session_plan(session);
    TRY(weights_check(plan, model));
    float *chunk = malloc(CHUNK_NUMEL * sizeof *chunk);
    CHECK(chunk);
    Status status = OK;
    for (int i = 0; i < plan->num_params && status == OK; i++)
        if (!plan->params[i]->is_adapter) status = load_param(session, model->weights, plan->params[i], chunk);
    free(chunk);
    return status;
}

/* ---- adapters ---- */

Status weights_load_adapter(Session *session, const char *folder)
{
    const Plan *plan = session_plan(session);
    StFile     *file;
    Arena       arena = {0};
    TRY(st_open(folder, &file));
    float *chunk = malloc(CHUNK_NUMEL * sizeof *chunk);
    CHECK(chunk);
    Status status = OK;
    size_t used = 0;
    for (int i = 0; i < plan->num_params && status == OK; i++) {
        Param param = *plan->params[i];
        if (!param.is_adapter) continue;
        const char *name = arena_printf(&arena, ADAPTER_PREFIX "%s", param.hf.names[0]);
        param.hf.names = &name;
        status = check_param(file, &param);
        if (status == OK) status = load_param(session, file, &param, chunk);
        used++;
    }
    if (status == OK && used != st_count(file))
        status = status_fail(ERR_INVALID,
                             "%s: %zu tensors, of which this model takes %zu: is it an adapter of another model, or are "
                             "its target_modules others than adapter_config.json says?",
                             folder, st_count(file), used);
    free(chunk);
    st_close(file);
    arena_deinit(&arena);
    return status;
}
