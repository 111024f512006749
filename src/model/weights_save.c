/* Writing weights: the mapping of each Param backwards. A tensor of the file is a list of row ranges of parameters. They are read from the
 * session in chunks while the file streams. */
#include "model/weights.h"

#include "base/hash.h"
#include "base/scoped.h"

#include <stdlib.h>
#include <string.h>

/* Where the session holds the values that are saved for a parameter. Adapters are saved from their master copy, which was trained; a
 * model's weights are saved in the model's dtype. This rank writes elements [first, first + numel); the value `name` holds them from
 * element `at` on. If the parameter isn't divided among ranks, each rank writes a part of it. */
typedef struct Source {
    const char *name;
    DType       dtype;
    int64_t     first, numel, at;
    bool        is_divided;
} Source;

static Source source_of(const Plan *plan, const Param *param)
{
    int           index;
    int64_t       at;
    const Bucket *bucket = plan_bucket(plan, param, &index);
    Source        source = {param->name, param->type.dtype, 0, type_numel(&param->type), 0, bucket && plan->world > 1};
    PlanPiece     own = source.is_divided ? plan_owned(plan, bucket, index) : plan_held(plan, param->name);
    if (own.value) source = (Source){own.value, source.dtype, own.first, own.numel, own.at, own.numel < source.numel || source.is_divided};
    const PlanEntry *master = param->is_adapter ? plan_master(plan, param, &at) : NULL;
    if (!master) return source;
    source.name = master->name;
    source.dtype = master->type.dtype;
    source.at = at;
    return source;
}

/* Rows [row, row + rows) of `param`, which are rows [at, at + rows) of the tensor. */
typedef struct Piece {
    const Param *param;
    int64_t      row, rows, at;
} Piece;

typedef struct SavedTensor {
    Piece          *pieces;
    int             num_pieces;
    bool            transposed;
    const LoraPair *pair; /* this pair's half follows the trained half: below A's rows, or (is_b) right of B's columns; NULL: no pair */
    bool            is_b;
} SavedTensor;

typedef struct Saver {
    Session         *session;
    const HfModel   *model;
    Comm            *comm;  /* NULL: one rank writes all */
    const LoraPairs *pairs; /* the pairs that adapters began with; NULL: none */
    Arena           *arena;
    StDecl          *decls;
    SavedTensor     *tensors;
    size_t           count;
} Saver;

static SavedTensor *add_tensor(Saver *saver, const char *name, const Param *param, int64_t rows, bool transposed)
{
    StDecl *decl = &saver->decls[saver->count];
    DType   dtype = source_of(session_plan(saver->session), param).dtype;
    *decl = st_decl(name, st_dtype_from(dtype), param->type.ndim, param->type.dim, transposed);
    if (!transposed) decl->dim[0] = rows;
    const StTensor *loaded = saver->model->weights ? st_find(saver->model->weights, name) : NULL;
    if (loaded && !loaded->ndim && decl->ndim == 1 && rows == 1) decl->ndim = 0; /* tensors loaded without dims are saved without dims */
    SavedTensor *tensor = &saver->tensors[saver->count++];
    tensor->transposed = transposed;
    return tensor;
}

static void add_piece(Saver *saver, SavedTensor *tensor, Piece piece, int max_pieces)
{
    if (!tensor->pieces) tensor->pieces = arena_array(saver->arena, Piece, max_pieces);
    tensor->pieces[tensor->num_pieces++] = piece;
}

/* Adds the tensors of a concatenation. Each has as many rows as the loaded file says, else an equal share. */
static Status add_concat(Saver *saver, const Param *param)
{
    const HfSource *hf = param_saved(param);
    int64_t         row = 0;
    for (int i = 0; i < hf->num_names; i++) {
        const StTensor *loaded = saver->model->weights ? st_find(saver->model->weights, hf->names[i]) : NULL;
        int64_t         rows = loaded && loaded->ndim ? loaded->dim[0] : param->type.dim[0] / hf->num_names;
        add_piece(saver, add_tensor(saver, hf->names[i], param, rows, false), (Piece){param, row, rows, 0}, 1);
        row += rows;
    }
    FAIL_IF(row != param->type.dim[0], ERR_UNSUPPORTED, "%s: how its rows divide among %d tensors isn't known", param->name, hf->num_names);
    return OK;
}

/* Adds the tensor of which parameter `first` is a slice, with all its slices; nothing if an earlier slice has added it. */
static Status add_slices(Saver *saver, const Plan *plan, int first)
{
    const Param *param = plan->params[first];
    const char  *name = param_saved(param)->names[0];
    for (size_t i = 0; i < saver->count; i++)
        if (strcmp(saver->decls[i].name, name) == 0) return OK;
    SavedTensor *tensor = add_tensor(saver, name, param, param_saved(param)->total_rows, false);
    int64_t      at = 0;
    while (at < param_saved(param)->total_rows) {
        const Param *next = NULL;
        for (int i = first; i < plan->num_params && !next; i++) {
            const HfSource *hf = param_saved(plan->params[i]);
            if (!plan->params[i]->ns && hf->kind == HF_SLICE && strcmp(hf->names[0], name) == 0 && hf->begin == at) next = plan->params[i];
        }
        FAIL_IF(!next, ERR_UNSUPPORTED, "tensor %s: no parameter holds its rows from %lld on", name, (long long)at);
        add_piece(saver, tensor, (Piece){next, 0, param_saved(next)->rows, at}, plan->num_params - first);
        at += param_saved(next)->rows;
    }
    return OK;
}

/* Makes room in the tensor for the half of the pair that the adapter began with. */
static void add_pair(const Saver *saver, SavedTensor *tensor, const Param *param)
{
    tensor->pair = param->is_adapter && !param->is_whole ? lora_pairs_find(saver->pairs, param->module) : NULL;
    tensor->is_b = lora_is_half(param, PEFT_B);
    if (tensor->pair) saver->decls[tensor - saver->tensors].dim[tensor->is_b] *= 2;
}

static Status collect(Saver *saver, const Plan *plan, bool adapters)
{
    size_t capacity = 0;
    for (int i = 0; i < plan->num_params; i++) capacity += (size_t)param_saved(plan->params[i])->num_names + 1;
    saver->decls = arena_array(saver->arena, StDecl, capacity + 1);
    saver->tensors = arena_array(saver->arena, SavedTensor, capacity + 1);
    for (int i = 0; i < plan->num_params; i++) {
        const Param *param = plan->params[i];
        if (param->is_adapter != adapters || param->ns) continue;
        const HfSource *hf = param_saved(param);
        const char     *name = hf->names[0];
        if (adapters) name = arena_printf(saver->arena, PEFT_PREFIX "%s", name);
        switch (hf->kind) {
        case HF_CONCAT:
            TRY(add_concat(saver, param));
            break;
        case HF_SLICE:
            TRY(add_slices(saver, plan, i));
            break;
        case HF_ROWS: /* the rows are saved as a tensor of their own */
        case HF_WHOLE:
        case HF_TRANSPOSE:
            add_piece(saver, add_tensor(saver, name, param, param->type.dim[0], hf->kind == HF_TRANSPOSE),
                      (Piece){param, 0, param->type.dim[0], 0}, 1);
            add_pair(saver, &saver->tensors[saver->count - 1], param);
            if (!adapters || !param->untied) break;
            name = arena_printf(saver->arena, PEFT_PREFIX "%s", param->untied); /* PEFT looks for the tied tensor under both names */
            add_piece(saver, add_tensor(saver, name, param, param->type.dim[0], false), (Piece){param, 0, param->type.dim[0], 0}, 1);
        }
    }
    return OK;
}

/* Reads all of a parameter, even if it is divided among ranks. */
static Status read_whole(Saver *saver, const Param *param, char *all)
{
    const Plan *plan = session_plan(saver->session);
    PlanPiece   held = plan_held(plan, param->name);
    int64_t     numel = type_numel(&param->type), most = numel;
    if (held.numel == numel) return session_read(saver->session, param->name, all, (size_t)type_bytes(&param->type));
    SCOPED_ARENA(arena);
    int                       world = comm_size(saver->comm);
    PlanPiece                *pieces = arena_array(&arena, PlanPiece, world);
    size_t                    bytes = (size_t)dtype_bytes(param->type.dtype, most);
    SCOPED(scoped_free) char *parts = malloc(bytes * (size_t)world);
    FAIL_IF(!parts, ERR_NO_FIT, "no memory to gather %s", param->name);
    char *own = parts + bytes * (size_t)comm_rank(saver->comm);
    TRY(comm_all_gather(saver->comm, &held, pieces, sizeof held));
    if (held.numel) TRY(session_read(saver->session, param->name, own, (size_t)dtype_bytes(param->type.dtype, held.numel)));
    TRY(comm_all_gather(saver->comm, own, parts, bytes));
    for (int r = 0; r < world; r++)
        memcpy(all + dtype_bytes(param->type.dtype, pieces[r].first), parts + bytes * (size_t)r,
               (size_t)dtype_bytes(param->type.dtype, pieces[r].numel));
    return OK;
}

static Status append_transposed(Saver *saver, const Param *param, FileWriter *out)
{
    size_t                    bytes = (size_t)type_bytes(&param->type), size = (size_t)dtype_bytes(param->type.dtype, 1);
    size_t                    rows = (size_t)param->type.dim[0], cols = (size_t)param->type.dim[1], begin, end;
    SCOPED(scoped_free) char *all = malloc(bytes);
    SCOPED(scoped_free) char *turned = malloc(bytes);
    FAIL_IF(!all || !turned, ERR_NO_FIT, "no memory to transpose %s", param->name);
    comm_own_bytes(saver->comm, bytes, &begin, &end);
    TRY(read_whole(saver, param, all));
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++) memcpy(turned + (c * rows + r) * size, all + (r * cols + c) * size, size);
    TRY(file_writer_skip(out, begin));
    TRY(file_writer_append(out, turned + begin, end - begin));
    return file_writer_skip(out, bytes - end);
}

Status weight_share_append(Session *session, Comm *comm, WeightShare share, bool is_common, FileWriter *out, uint64_t *sum)
{
    const char *direct = session_pointer(session, share.value);
    SCOPED_ARRAY(char, chunk, WEIGHT_SHARE_CHUNK);
    if (is_common) {
        comm_own_bytes(comm, share.bytes, &share.begin, &share.end);
        share.at += share.begin;
    }
    if (share.begin == share.end) return file_writer_skip(out, share.bytes);
    TRY(file_writer_skip(out, share.begin));
    for (size_t at = share.begin; at < share.end; at += WEIGHT_SHARE_CHUNK) {
        size_t      n = share.end - at < WEIGHT_SHARE_CHUNK ? share.end - at : WEIGHT_SHARE_CHUNK, from = share.at + at - share.begin;
        const char *data = direct ? direct + from : chunk;
        comm_beat(comm, "saving");
        if (!direct) TRY(session_read_range(session, share.value, from, chunk, n));
        if (sum) *sum = hash_bytes(data, n, *sum);
        TRY(file_writer_append(out, data, n));
    }
    return file_writer_skip(out, share.bytes - share.end);
}

static int64_t clamp(int64_t n, int64_t least, int64_t most)
{
    return n < least ? least : n > most ? most : n;
}

static Status append_piece(Saver *saver, const Piece *piece, FileWriter *out)
{
    Source  source = source_of(session_plan(saver->session), piece->param);
    int64_t cols = type_numel(&piece->param->type) / piece->param->type.dim[0], first = piece->row * cols, end = first + piece->rows * cols;
    int64_t own = clamp(source.first, first, end), own_end = clamp(source.first + source.numel, first, end);
    size_t  bytes = (size_t)dtype_bytes(source.dtype, end - first), lo = (size_t)dtype_bytes(source.dtype, own - first);
    size_t  hi = (size_t)dtype_bytes(source.dtype, own_end - first), at = (size_t)dtype_bytes(source.dtype, source.at + own - source.first);
    return weight_share_append(saver->session, saver->comm, (WeightShare){source.name, bytes, lo, hi, at}, !source.is_divided, out, NULL);
}

/* Copies elements [first, end) of B (rows, r) to `out`, and after each row that ends there the pair's row, negated. `out` has room for
 * twice as many elements and one row. Returns the number of elements copied. */
static int64_t interleave(const LoraPair *pair, const float *values, int64_t first, int64_t end, float *out)
{
    int64_t count = 0;
    for (int64_t i = first; i < end; i++) {
        out[count++] = values[i - first];
        if ((i + 1) % pair->r != 0) continue;
        for (int64_t k = 0; k < pair->r; k++) out[count++] = -pair->b[i + 1 - pair->r + k];
    }
    return count;
}

/* Index of element i of B in the saved tensor, which has twice the columns. The rank that has a row's last element also writes the second
 * half of that row. */
static int64_t place_in_twice(const LoraPair *pair, int64_t i)
{
    return i / pair->r * 2 * pair->r + i % pair->r;
}

Status weights_append_floats(DType dtype, const float *values, int64_t count, FileWriter *out)
{
    size_t bytes = (size_t)dtype_bytes(dtype, count);
    if (dtype == DT_F32) return file_writer_append(out, values, bytes);
    SCOPED_ARRAY(char, codes, bytes + 1);
    dtype_encode(dtype, values, count, codes);
    return file_writer_append(out, codes, bytes);
}

/* Appends B and the pair's b, negated, side by side. */
static Status append_b(Saver *saver, const LoraPair *pair, const Param *param, FileWriter *out)
{
    Source  source = source_of(session_plan(saver->session), param);
    int64_t all = pair->rows * pair->r, first = source.first, end = source.first + source.numel;
    if (!source.is_divided) {
        first = 0;
        end = comm_rank(saver->comm) == 0 ? all : 0;
    }
    if (first == end) return file_writer_skip(out, (size_t)dtype_bytes(source.dtype, 2 * all));
    int64_t count = end - first, before = place_in_twice(pair, first);
    size_t  bytes = (size_t)dtype_bytes(source.dtype, count);
    SCOPED_ARRAY(float, values, count);
    SCOPED_ARRAY(float, both, 2 * count + pair->r);
    SCOPED_ARRAY(char, stored, bytes);
    TRY(session_read_range(saver->session, source.name, (size_t)dtype_bytes(source.dtype, source.at), stored, bytes));
    dtype_decode(source.dtype, stored, count, values);
    int64_t written = interleave(pair, values, first, end, both);
    TRY(file_writer_skip(out, (size_t)dtype_bytes(source.dtype, before)));
    TRY(weights_append_floats(source.dtype, both, written, out));
    return file_writer_skip(out, (size_t)dtype_bytes(source.dtype, 2 * all - before - written));
}

/* Appends A with twice the rank: the trained rows, then the rows of the pair. */
static Status append_a(Saver *saver, const SavedTensor *tensor, FileWriter *out)
{
    const LoraPair *pair = tensor->pair;
    int64_t         count = pair->r * pair->cols;
    DType           dtype = source_of(session_plan(saver->session), tensor->pieces[0].param).dtype;
    TRY(append_piece(saver, &tensor->pieces[0], out));
    if (comm_rank(saver->comm) != 0) return file_writer_skip(out, (size_t)dtype_bytes(dtype, count));
    return weights_append_floats(dtype, pair->a, count, out);
}

static Status append_tensor(void *context, size_t index, FileWriter *out)
{
    Saver       *saver = context;
    SavedTensor *tensor = &saver->tensors[index];
    if (tensor->pair) return tensor->is_b ? append_b(saver, tensor->pair, tensor->pieces[0].param, out) : append_a(saver, tensor, out);
    if (tensor->transposed) return append_transposed(saver, tensor->pieces[0].param, out);
    for (int i = 0; i < tensor->num_pieces; i++) TRY(append_piece(saver, &tensor->pieces[i], out));
    return OK;
}

Status weights_save(Session *session, const HfModel *model, bool adapters, Comm *comm, const char *folder, const char *stem,
                    int64_t max_shard_bytes, const LoraPairs *pairs)
{
    SCOPED_ARENA(arena);
    Saver  saver = {.arena = &arena, .session = session, .model = model, .comm = comm, .pairs = pairs};
    Status status = session_sync(session);
    if (status == OK) status = collect(&saver, session_plan(session), adapters);
    TRY(comm_agree(comm, status));
    return st_write_folder_together(comm, folder, stem, saver.decls, saver.count, (size_t)max_shard_bytes, append_tensor, &saver);
}

int64_t weights_bytes(const Plan *plan, bool adapters)
{
    int64_t bytes = 0;
    for (int i = 0; i < plan->num_params; i++) {
        const Param *param = plan->params[i];
        if (param->is_adapter != adapters || param->ns) continue;
        int64_t times = (adapters && param->untied) || (plan->adapters_take && !param->is_whole) ? 2 : 1;
        bytes += times * (dtype_bytes(source_of(plan, param).dtype, type_numel(&param->type)) + 256); /* 256: for its entry in the header */
    }
    return bytes;
}

/* ---- one by one ---- */

struct WeightList {
    Arena arena;
    Saver saver;
};

Status weight_list_create(Session *session, const HfModel *model, bool adapters, WeightList **out)
{
    WeightList *list = calloc_or_end(1, sizeof *list);
    list->saver = (Saver){.arena = &list->arena, .session = session, .model = model};
    Status status = collect(&list->saver, session_plan(session), adapters);
    if (status == OK)
        *out = list;
    else
        weight_list_destroy(list);
    return status;
}

void weight_list_destroy(WeightList *list)
{
    if (!list) return;
    arena_deinit(&list->arena);
    free(list);
}

size_t weight_list_count(const WeightList *list)
{
    return list->saver.count;
}

const StDecl *weight_list_at(const WeightList *list, size_t index)
{
    return &list->saver.decls[index];
}

/* Finds where the session holds a parameter's gradient. */
static Status gradient_of(const Plan *plan, const Param *param, Source *out)
{
    int           index;
    const Bucket *bucket = plan_bucket(plan, param, &index);
    FAIL_IF(!bucket, ERR_UNSUPPORTED, "%s isn't trained: it has no gradient", param->name);
    PlanPiece own = plan_owned(plan, bucket, index);
    *out = (Source){bucket->grad_share, bucket->grad, own.first, own.numel, own.at, plan->world > 1};
    return OK;
}

/* Reads, as floats, the elements of [first, end) that this rank writes: [*lo, *hi). The caller frees *out; NULL: this rank writes none. */
static Status read_floats(WeightList *list, const Param *param, bool gradient, int64_t first, int64_t end, int64_t *lo, int64_t *hi,
                          float **out)
{
    Session    *session = list->saver.session;
    const Plan *plan = session_plan(session);
    Source      source;
    *out = NULL;
    FAIL_IF(param->format && !gradient, ERR_UNSUPPORTED, "%s is kept in codes", param->name);
    if (gradient)
        TRY(gradient_of(plan, param, &source));
    else
        source = source_of(plan, param);
    *lo = clamp(source.first, first, end);
    *hi = clamp(source.first + source.numel, first, end);
    if (*lo == *hi || (!source.is_divided && plan->rank > 0)) return OK;
    size_t bytes = (size_t)dtype_bytes(source.dtype, *hi - *lo);
    SCOPED_ARRAY(char, stored, bytes);
    *out = malloc_or_end((size_t)(*hi - *lo) * sizeof **out);
    TRY(session_read_range(session, source.name, (size_t)dtype_bytes(source.dtype, source.at + *lo - source.first), stored, bytes));
    dtype_convert(*out, DT_F32, stored, source.dtype, *hi - *lo);
    return OK;
}

static bool is_trained(const WeightList *list, const Param *param)
{
    int index;
    return plan_bucket(session_plan(list->saver.session), param, &index);
}

/* Clears the gradient of rows that are never trained, in a tensor whose other rows are trained. */
static void clear_piece(const WeightList *list, const Piece *piece, float *out)
{
    int64_t cols = type_numel(&piece->param->type) / piece->param->type.dim[0];
    if (session_plan(list->saver.session)->rank == 0) memset(out + piece->at * cols, 0, (size_t)(piece->rows * cols) * sizeof *out);
}

static Status read_piece(WeightList *list, const Piece *piece, bool gradient, bool transposed, float *out)
{
    const Param               *param = piece->param;
    int64_t                    rows = param->type.dim[0], cols = type_numel(&param->type) / rows, first = piece->row * cols, lo, hi;
    SCOPED(scoped_free) float *own = NULL;
    TRY(read_floats(list, param, gradient, first, first + piece->rows * cols, &lo, &hi, &own));
    for (int64_t i = lo; own && i < hi; i++) out[transposed ? i % cols * rows + i / cols : piece->at * cols + i - first] = own[i - lo];
    return OK;
}

Status weight_list_read(WeightList *list, size_t index, bool gradient, float *out, int64_t numel)
{
    const StDecl      *decl = &list->saver.decls[index];
    const SavedTensor *tensor = &list->saver.tensors[index];
    int64_t            want = 1;
    for (int i = 0; i < decl->ndim; i++) want *= decl->dim[i];
    FAIL_IF(numel != want, ERR_INVALID, "%s has %lld elements; the room is for %lld", decl->name, (long long)want, (long long)numel);
    bool trained = false;
    for (int i = 0; i < tensor->num_pieces; i++) trained |= is_trained(list, tensor->pieces[i].param);
    for (int i = 0; i < tensor->num_pieces; i++) {
        const Piece *piece = &tensor->pieces[i];
        if (gradient && trained && !is_trained(list, piece->param))
            clear_piece(list, piece, out);
        else
            TRY(read_piece(list, piece, gradient, tensor->transposed, out));
    }
    return OK;
}

void transpose_floats(const float *from, int64_t rows, int64_t cols, float *to)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) to[c * rows + r] = from[r * cols + c];
}
