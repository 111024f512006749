/* Reading the adapters that rows choose among. A parameter holds the matrices of all adapters one below the other. Each matrix fills the
 * first rows and columns of a block that has room for the largest rank; the rest of the block is zeros. */
#include "base/scoped.h"
#include "model/peft.h"
#include "model/weights.h"

#include <stdlib.h>
#include <string.h>

typedef struct Folders {
    const char *const *names;
    StFile           **files;
    int                count;
    size_t            *used; /* for each adapter: how many of its tensors a parameter loads or no program needs */
} Folders;

/* The adapter's matrix; NULL: it doesn't adapt this module. */
static const StTensor *find_matrix(const Folders *folders, int adapter, const Param *param)
{
    return peft_find(folders->files[adapter], param->hf.names[0], "");
}

/* Checks the matrix's shape: A has the columns of its block, B the rows. The other dim is the adapter's rank. */
static Status check_matrix(const Folders *folders, int adapter, const Param *param, bool is_a)
{
    const StTensor *tensor = find_matrix(folders, adapter, param);
    int64_t         rows = param->type.dim[0] / folders->count, cols = param->type.dim[1];
    if (!tensor) return OK;
    folders->used[adapter]++;
    bool fits = tensor->ndim == 2 && tensor->dim[is_a] == (is_a ? cols : rows) && tensor->dim[!is_a] <= (is_a ? rows : cols);
    FAIL_IF(!fits, ERR_INVALID, "%s: tensor %s has another shape than the model gives; is it an adapter of another model?", tensor->path,
            tensor->name);
    FAIL_IF(!st_dtype_is_float(tensor->dtype), ERR_UNSUPPORTED, "%s: tensor %s is %s; expected F32, BF16, F16 or F64", tensor->path,
            tensor->name, st_dtype_name(tensor->dtype));
    return OK;
}

static Status check_all(const Plan *plan, const Folders *folders)
{
    for (int a = 0; a < folders->count; a++) folders->used[a] = peft_num_unread(plan, folders->files[a]);
    for (int i = 0; i < plan->num_params; i++) {
        const Param *param = plan->params[i];
        if (!param->is_adapter) continue;
        for (int a = 0; a < folders->count; a++) TRY(check_matrix(folders, a, param, lora_is_half(param, PEFT_A)));
    }
    for (int a = 0; a < folders->count; a++)
        FAIL_IF(folders->used[a] != st_count(folders->files[a]), ERR_INVALID,
                "%s: %zu tensors, of which this model takes %zu: is it an adapter of another model?", folders->names[a],
                st_count(folders->files[a]), folders->used[a]);
    return OK;
}

static Status begin_param(void *context, const Param *param)
{
    const Folders *folders = context;
    for (int a = 0; a < folders->count; a++) {
        const StTensor *tensor = find_matrix(folders, a, param);
        if (tensor) TRY(st_check_range(tensor, param->type.dtype));
    }
    return OK;
}

/* Reads elements [col, col + count) of a row of the parameter. */
static Status read_row(const Folders *folders, const Param *param, int64_t row, int64_t col, int64_t count, float *out)
{
    int64_t         rows = param->type.dim[0] / folders->count, own = row % rows;
    const StTensor *tensor = find_matrix(folders, (int)(row / rows), param);
    int64_t         there = tensor && own < tensor->dim[0] ? tensor->dim[1] - col : 0;
    if (there < 0) there = 0;
    if (there > count) there = count;
    for (int64_t i = there; i < count; i++) out[i] = 0;
    return there ? st_to_f32(tensor, own * tensor->dim[1] + col, there, out) : OK;
}

static Status read_values(void *context, const Param *param, int64_t first, int64_t count, float *out)
{
    int64_t cols = param->type.dim[1];
    for (int64_t taken; count > 0; first += taken, count -= taken, out += taken) {
        taken = cols - first % cols < count ? cols - first % cols : count;
        TRY(read_row(context, param, first / cols, first % cols, taken, out));
    }
    return OK;
}

static void close_all(Folders *folders)
{
    for (int a = 0; a < folders->count; a++) st_close(folders->files[a]);
    free(folders->files);
    free(folders->used);
}

Status weights_load_row_adapters(Session *session, const char *const *names, int count)
{
    SCOPED(close_all)
    Folders    folders = {names, calloc_or_end((size_t)count, sizeof(StFile *)), count, calloc_or_end((size_t)count, sizeof(size_t))};
    LoadSource source = {.context = &folders, .begin = begin_param, .values = read_values};
    for (int a = 0; a < count; a++) TRY(peft_open_tensors(names[a], &folders.files[a]));
    TRY(check_all(session_plan(session), &folders));
    return session_load(session, true, &source);
}
