/* optimizer.safetensors: a tensor for each state of each trained parameter, in the parameter's own shape. In the session states may be
 * packed, fused or in another order; the file doesn't depend on that.
 *
 * A tensor's name is the parameter's name and the state's: model.norm.weight.m. A parameter is named as its tensor in the model's or
 * adapter's file beside this file. A parameter that is several tensors there, or part of one, has its IR name. */
#include "store/checkpoint_internal.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/scoped.h"
#include "model/weights.h"
#include "ops/attrs.h"
#include "ops/lowbit/dynamic_map.h"
#include "passes/optimizers.h"

#include <stdlib.h>
#include <string.h>

#define FORMAT_VERSION "2"
#define FLAT_TENSOR "segments" /* a tensor that only the older format has */
#define SCALED "scaled_tensors"

enum { CHUNK_NUMEL = 1 << 18 };

static const char *tensor_name(Arena *arena, const Param *param, const char *state)
{
    const HfSource *hf = param->is_adapter ? param_saved(param) : &param->hf;
    bool            is_whole = hf->kind == HF_WHOLE && hf->num_names == 1;
    return arena_printf(arena, "%s%s.%s", is_whole && param->is_adapter ? PEFT_PREFIX : "", is_whole ? hf->names[0] : param->name, state);
}

/* ---- writing ---- */

/* A tensor of the file: a state of a parameter, or a whole value of the plan. */
typedef struct Item {
    const char        *name;  /* name in the file */
    const char        *value; /* name of the plan's value */
    TensorType         type;
    size_t             bytes;
    PlanPiece          own;    /* the part of the tensor that this rank holds */
    const Bucket      *bucket; /* NULL for a whole value; then the fields below are unset */
    const BucketState *state;
    const Param       *param;
    int                index; /* the parameter's index in the bucket */
} Item;

static Item item_of(Arena *arena, const Plan *plan, const Bucket *bucket, int index, const BucketState *state)
{
    const Param *param = plan->trained_params[bucket->first + index];
    TensorType   type = state_type(state, param);
    return (Item){.name = tensor_name(arena, param, state->name),
                  .value = state->value,
                  .type = type,
                  .own = plan_owned_state(plan, bucket, index, state),
                  .bytes = (size_t)type_bytes(&type),
                  .bucket = bucket,
                  .state = state,
                  .param = param,
                  .index = index};
}

/* Values that are saved whole, the scales first: they belong to no single parameter. */
static const char *const whole_values[] = {PRECISION_SCALES, PRECISION_HISTORY, PRECISION_NOW};
enum { NUM_WHOLE = sizeof whole_values / sizeof *whole_values };

/* Lists the whole values, then the states of each parameter. Returns how many. */
static size_t list_items(Arena *arena, const Plan *plan, Item **out)
{
    size_t most = NUM_WHOLE, count = 0;
    for (int b = 0; b < plan->num_buckets; b++) most += (size_t)(plan->buckets[b].count * plan->buckets[b].num_states);
    Item *items = *out = arena_array(arena, Item, most);
    for (int i = 0; i < NUM_WHOLE; i++) {
        const PlanEntry *entry = plan_find(plan, whole_values[i]);
        if (entry)
            items[count++] = (Item){.name = entry->name,
                                    .value = entry->name,
                                    .type = entry->type,
                                    .bytes = (size_t)entry->place.bytes,
                                    .own = {entry->name, 0, type_numel(&entry->type), 0}};
    }
    for (int b = 0; b < plan->num_buckets; b++) {
        const Bucket *bucket = &plan->buckets[b];
        for (int i = 0; i < bucket->count; i++)
            for (int k = 0; k < bucket->num_states; k++)
                items[count++] = item_of(arena, plan, bucket, bucket->listed[i], &bucket->states[k]);
    }
    return count;
}

int64_t checkpoint_states_bytes(const Plan *plan)
{
    enum { HEADER_BYTES = 256 }; /* bytes for the header entry and the checksum of a tensor */
    SCOPED_ARENA(arena);
    Item   *items;
    int64_t bytes = 0;
    for (size_t i = list_items(&arena, plan, &items); i-- > 0;) bytes += (int64_t)items[i].bytes + HEADER_BYTES;
    return bytes;
}

typedef struct Saver {
    Session    *session;
    Comm       *comm;
    const Item *items;
    TensorSum  *sums;
} Saver;

static Status append_item(void *context, size_t index, FileWriter *out)
{
    Saver      *saver = context;
    const Item *item = &saver->items[index];
    DType       dtype = item->type.dtype;
    size_t      begin = (size_t)dtype_bytes(dtype, item->own.first), end = begin + (size_t)dtype_bytes(dtype, item->own.numel);
    WeightShare share = {item->value, item->bytes, begin, end, (size_t)dtype_bytes(dtype, item->own.at)};
    return weight_share_append(saver->session, saver->comm, share, !item->bucket, out, &saver->sums[index].sum);
}

/* A hash of the names and dtypes of the tensors that the rows of the scales belong to. */
static const char *scaled_text(Arena *arena, const Plan *plan)
{
    uint64_t hash = 0;
    for (int i = 0; i < plan->num_scaled; i++) {
        hash = hash_bytes(plan->scaled[i].name, strlen(plan->scaled[i].name) + 1, hash);
        hash = hash_bytes(&plan->scaled[i].dtype, sizeof plan->scaled[i].dtype, hash);
    }
    return arena_printf(arena, "%016llx", (unsigned long long)hash);
}

Status checkpoint_states_save(Arena *arena, Session *session, Comm *comm, const char *path, TensorSums *out_sums)
{
    const Plan *plan = session_plan(session);
    const char *metadata[] = {"format", "surogate optimizer",     "version", FORMAT_VERSION, "optimizer", plan->optimizer,
                              SCALED,   scaled_text(arena, plan), NULL};
    Item       *items;
    size_t      count = list_items(arena, plan, &items);
    StDecl     *decls = arena_array(arena, StDecl, count + 1);
    *out_sums = (TensorSums){arena_array(arena, TensorSum, count + 1), count};
    for (size_t i = 0; i < count; i++) {
        const TensorType *type = &items[i].type;
        decls[i] = st_decl(items[i].name, st_dtype_from(type->dtype), type->ndim, type->dim, false);
        out_sums->items[i].name = decls[i].name;
    }
    Saver saver = {session, comm, items, out_sums->items};
    return st_write_together(comm, path, decls, count, metadata, append_item, &saver);
}

const char *checkpoint_states_damaged(Arena *arena, const char *path, const JsonValue *sums)
{
    SCOPED(st_close_at) StFile *file = NULL;
    if (st_open(path, &file) != OK) return NULL;
    for (uint32_t i = 0; i < sums->count; i++) {
        const JsonMember *member = &sums->members[i];
        const StTensor   *tensor = st_find(file, member->key.data);
        uint64_t          want = 0, sum = 0;
        for (size_t at = 0; tensor && at < tensor->bytes; at += WEIGHT_SHARE_CHUNK) {
            size_t left = tensor->bytes - at;
            sum = hash_bytes((const char *)tensor->data + at, left < WEIGHT_SHARE_CHUNK ? left : WEIGHT_SHARE_CHUNK, sum);
        }
        if (!tensor || !checkpoint_get_hash(sums, member->key.data, &want) || sum != want) return arena_strdup(arena, member->key.data);
    }
    return NULL;
}

const char *checkpoint_states_at(Arena *arena, const char *path, size_t begin, size_t end)
{
    SCOPED(file_unmap) FileMap  map = {0};
    SCOPED(st_close_at) StFile *file = NULL;
    if (file_map(path, &map) != OK || st_open_memory(path, map.data, map.size, &file) != OK) return NULL;
    for (size_t i = 0; i < st_count(file); i++) {
        const StTensor *tensor = st_at(file, i);
        size_t          at = (size_t)((const char *)tensor->data - map.data);
        if (at < end && at + tensor->bytes > begin) return arena_strdup(arena, tensor->name);
    }
    return NULL;
}

/* ---- reading ---- */

typedef struct StateLoader {
    Arena        *arena;
    const char   *path, *folder;
    const StFile *file;
    bool         *used; /* indexed by tensor of the file */
    Session      *session;
    const Plan   *plan;
    float        *values; /* CHUNK_NUMEL values. stored: the same values in the session's dtype; scales: if the session stores codes */
    void         *stored;
    float        *scales;
    DynamicMap    maps[2]; /* indexed by is_signed */
    int           num_converted, num_copies_lost, num_copies_taken, num_copies_made;
    DType         from, to; /* dtypes of the first state that was converted */
    bool          has_scales;
} StateLoader;

/* Finds the tensor `name` and marks it as used; NULL: there is none. */
static const StTensor *take(StateLoader *l, const char *name)
{
    const StTensor *tensor = st_find(l->file, name);
    if (tensor) l->used[tensor - st_at(l->file, 0)] = true;
    return tensor;
}

/* What to do instead, for messages of a run that can't resume with the checkpoint's optimizer state. */
static const char *way_out(StateLoader *l)
{
    if (l->plan->trained_params[0]->is_adapter)
        return arena_printf(l->arena, "or keep what was trained and begin a new run: surogate merge BASE %s OUT, then model: OUT",
                            l->folder);
    return arena_printf(l->arena, "or keep what was trained and begin a new run: model: %s, with another output_dir", l->folder);
}

static Status check_format(StateLoader *l)
{
    const char *version = st_metadata(l->file, "version");
    FAIL_IF(!version && st_find(l->file, FLAT_TENSOR), ERR_CHECKPOINT,
            "%s is of an older format, in which states aren't told apart by parameter. Go on with the version of this program that wrote "
            "it, %s",
            l->path, way_out(l));
    FAIL_IF(!version || strcmp(version, FORMAT_VERSION) != 0, ERR_CHECKPOINT,
            "%s: its format has version %s; this program reads version " FORMAT_VERSION, l->path, version ? version : "(none)");
    return OK;
}

static Status missing(StateLoader *l, const char *name)
{
    const char *optimizer = st_metadata(l->file, "optimizer");
    FAIL_IF(optimizer && strcmp(optimizer, l->plan->optimizer) != 0, ERR_CHECKPOINT,
            "%s is of optimizer %s, this run's is %s (tensor %s is missing). Set optimizer: %s, %s", l->path, optimizer, l->plan->optimizer,
            name, optimizer, way_out(l));
    FAIL(ERR_CHECKPOINT,
         "%s: tensor %s is missing: is the checkpoint of another model, or of other LoRA settings? Go on with those it was "
         "made with, %s",
         l->path, name, way_out(l));
}

static bool same_dims(const StTensor *tensor, const TensorType *type)
{
    return tensor->ndim == type->ndim && memcmp(tensor->dim, type->dim, (size_t)type->ndim * sizeof *type->dim) == 0;
}

static Status check_dims(StateLoader *l, const StTensor *tensor, const TensorType *want)
{
    char have[ST_SHAPE_BYTES], text[64];
    FAIL_IF(!same_dims(tensor, want), ERR_CHECKPOINT,
            "%s: tensor %s has shape %s, this run's is %s: is the checkpoint of another model, or of another lora_rank? Go on with the "
            "settings it was made with, %s",
            l->path, tensor->name, st_shape_text(tensor->dim, tensor->ndim, have), type_text(want, text), way_out(l));
    return OK;
}

/* *out: the scales of a tensor of codes; NULL: the tensor isn't codes. */
static Status find_scales(StateLoader *l, const Item *item, const StTensor *tensor, const StTensor **out)
{
    const char *name = arena_printf(l->arena, "%s" OPTIMIZER_SCALE, tensor->name);
    BucketState scales = {.dtype = DT_F32, .extent = STATE_BLOCKS};
    TensorType  type = state_type(&scales, item->param);
    *out = NULL;
    if (tensor->dtype != ST_U8) return OK;
    *out = take(l, name);
    if (!*out) return missing(l, name);
    FAIL_IF((*out)->dtype != ST_F32, ERR_CHECKPOINT, "%s: tensor %s is %s, expected F32", l->path, name, st_dtype_name((*out)->dtype));
    return check_dims(l, *out, &type);
}

/* Reads elements [first, first + count) of a tensor into l->values. All blocks are whole, except the tensor's last. */
static Status read_values(StateLoader *l, const Item *item, const StTensor *tensor, const StTensor *scales, int64_t first, int64_t count)
{
    bool           is_signed = item->state->code == CODE_SIGNED;
    const uint8_t *codes = (const uint8_t *)tensor->data + first;
    if (!scales) return st_to_f32(tensor, first, count, l->values);
    for (int64_t i = 0; i < count; i += MOMENT_BLOCK)
        dynamic_decode(&l->maps[is_signed], is_signed, codes + i, ((const float *)scales->data)[(first + i) / MOMENT_BLOCK],
                       count - i < MOMENT_BLOCK ? count - i : MOMENT_BLOCK, l->values + i);
    return OK;
}

/* Writes l->values to the session as elements [first, first + count) of the tensor, all of which this rank holds. */
static Status write_values(StateLoader *l, const Item *item, int64_t first, int64_t count)
{
    const BucketState *state = item->state;
    size_t at = (size_t)dtype_bytes(state->dtype, item->own.at + first - item->own.first), bytes = (size_t)dtype_bytes(state->dtype, count);
    if (state->dtype != DT_U8) {
        dtype_convert(l->stored, state->dtype, l->values, DT_F32, count);
        return session_write_range(l->session, state->value, at, l->stored, bytes);
    }
    bool               is_signed = state->code == CODE_SIGNED;
    const BucketState *scale = &item->bucket->states[state->scale];
    for (int64_t i = 0; i < count; i += MOMENT_BLOCK)
        l->scales[i / MOMENT_BLOCK] = dynamic_encode(&l->maps[is_signed], is_signed, l->values + i,
                                                     count - i < MOMENT_BLOCK ? count - i : MOMENT_BLOCK, (uint8_t *)l->stored + i);
    TRY(session_write_range(l->session, state->value, at, l->stored, bytes));
    int64_t block = scale->at[item->index] + (first - item->own.first) / MOMENT_BLOCK;
    return session_write_range(l->session, scale->value, (size_t)block * sizeof *l->scales, l->scales,
                               (size_t)((count + MOMENT_BLOCK - 1) / MOMENT_BLOCK) * sizeof *l->scales);
}

/* Loads a tensor that is stored in another dtype than the session's. */
static Status convert(StateLoader *l, const Item *item, const StTensor *tensor)
{
    DType           from;
    DTypeSet        known = DT_SET_FLOAT | (item->state->code ? DT_SET(DT_U8) : 0);
    const StTensor *scales;
    FAIL_IF(!st_dtype_to(tensor->dtype, &from) || !(DT_SET(from) & known) || !(DT_SET(item->state->dtype) & known), ERR_CHECKPOINT,
            "%s: tensor %s is %s, which can't be read as %s; go on with the settings it was made with, %s", l->path, tensor->name,
            st_dtype_name(tensor->dtype), dtype_info(item->state->dtype)->name, way_out(l));
    TRY(find_scales(l, item, tensor, &scales));
    if (l->num_converted++ == 0) l->from = from, l->to = item->state->dtype;
    for (int64_t i = item->own.first, end = i + item->own.numel; i < end; i += CHUNK_NUMEL) {
        int64_t n = end - i < CHUNK_NUMEL ? end - i : CHUNK_NUMEL;
        TRY(read_values(l, item, tensor, scales, i, n));
        TRY(write_values(l, item, i, n));
    }
    return OK;
}

static Status load_item(StateLoader *l, const Item *item)
{
    const StTensor *tensor = take(l, item->name);
    if (!tensor && item->state->is_copy) { /* the weights were loaded into this copy */
        l->num_copies_made++;
        return OK;
    }
    const StTensor *scales;
    if (!tensor && item->state->extent == STATE_BLOCKS) return OK; /* scales: read with their codes, or made by encoding */
    if (!tensor) return missing(l, item->name);
    TRY(check_dims(l, tensor, &item->type));
    if (tensor->dtype != st_dtype_from(item->state->dtype)) return convert(l, item, tensor);
    if (item->state->code) TRY(find_scales(l, item, tensor, &scales));
    DType dtype = item->state->dtype;
    return session_write_range(l->session, item->value, (size_t)dtype_bytes(dtype, item->own.at),
                               (const char *)tensor->data + dtype_bytes(dtype, item->own.first),
                               (size_t)dtype_bytes(dtype, item->own.numel));
}

/* ---- wider copies of weights ---- */

static bool has_type(const StTensor *tensor, const TensorType *type)
{
    return tensor && tensor->dtype == st_dtype_from(type->dtype) && same_dims(tensor, type);
}

/* The checkpoint's wider copy of a parameter, if this run has no such copy but keeps the parameter itself in fp32: the parameter is then
 * set to the copy. NULL: none. (An adapter's file already holds the same values.) */
static const StTensor *find_weights(Arena *arena, const Plan *plan, const Param *param, const StFile *states)
{
    int64_t at;
    bool    is_tensor = param->is_adapter || (param->hf.kind == HF_WHOLE && param->hf.num_names == 1);
    if (!is_tensor || param->type.dtype != DT_F32 || plan_master(plan, param, &at)) return NULL;
    const StTensor *copy = st_find(states, tensor_name(arena, param, OPTIMIZER_COPY));
    return has_type(copy, &param->type) ? copy : NULL;
}

Status checkpoint_states_widen(Arena *arena, const char *folder, const Plan *plan, StFile *weights, StFile **out)
{
    size_t    count = st_count(weights);
    StTensor *tensors = arena_array(arena, StTensor, count + 1);
    TRY(st_open(arena_printf(arena, "%s/" OPTIMIZER_NAME, folder), out));
    for (size_t i = 0; i < count; i++) tensors[i] = *st_at(weights, i);
    for (int i = 0; i < plan->num_trained; i++) {
        const Param    *param = plan->trained_params[i];
        const StTensor *copy = find_weights(arena, plan, param, *out), *weight = copy ? st_find(weights, param->hf.names[0]) : NULL;
        if (!weight || weight->ndim != copy->ndim) continue;
        StTensor *tensor = &tensors[weight - st_at(weights, 0)];
        *tensor = *copy;
        tensor->name = weight->name;
    }
    return st_set_tensors(weights, tensors, count);
}

/* ---- scales and amax history ---- */

/* Writes the scales of all tensors except frozen weights, which keep the scales that their codes were made with. */
static Status write_scales(StateLoader *l, const StTensor *tensor)
{
    size_t row = tensor->bytes / (size_t)l->plan->num_scaled;
    for (int i = 0; i < l->plan->num_scaled; i++)
        if (!l->plan->scaled[i].num_params)
            TRY(session_write_range(l->session, PRECISION_SCALES, (size_t)i * row, (const char *)tensor->data + (size_t)i * row, row));
    return OK;
}

/* Loads the scales and the amax history they are made from: all of them, or none if the file's scales are of other tensors than this
 * plan's. */
static Status load_scales(StateLoader *l)
{
    const StTensor *stored[NUM_WHOLE];
    const char     *tensors = st_metadata(l->file, SCALED);
    bool            fits = tensors && strcmp(tensors, scaled_text(l->arena, l->plan)) == 0;
    for (int i = 0; i < NUM_WHOLE; i++) {
        const PlanEntry *entry = plan_find(l->plan, whole_values[i]);
        stored[i] = take(l, whole_values[i]);
        fits = fits && entry && has_type(stored[i], &entry->type);
    }
    l->has_scales = l->plan->num_scaled && fits;
    if (!l->plan->num_scaled && stored[0]) log_info("%s: its FP8 scales are left out: this run has no FP8 products", l->path);
    if (l->plan->num_scaled && !fits)
        log_info("%s %s; this run's are measured anew", l->path,
                 stored[0] ? "has FP8 scales of other tensors, or of another fp8_amax_history" : "has no FP8 scales");
    for (int i = 0; i < NUM_WHOLE && l->has_scales; i++)
        TRY(i == 0 ? write_scales(l, stored[i]) : session_write(l->session, whole_values[i], stored[i]->data, stored[i]->bytes));
    return OK;
}

/* Every tensor of the file must be used. The exception is wider copies of weights, if this run keeps none: its weights begin as these
 * copies, rounded if the run keeps fewer bits. */
static Status check_unused(StateLoader *l)
{
    for (int i = 0; i < l->plan->num_trained; i++) {
        const Param *param = l->plan->trained_params[i];
        const char  *name = tensor_name(l->arena, param, OPTIMIZER_COPY);
        bool         was_used = st_find(l->file, name) && l->used[st_find(l->file, name) - st_at(l->file, 0)];
        if (was_used || !take(l, name)) continue;
        *(find_weights(l->arena, l->plan, param, l->file) ? &l->num_copies_taken : &l->num_copies_lost) += 1;
    }
    for (size_t i = 0; i < st_count(l->file); i++)
        FAIL_IF(!l->used[i], ERR_CHECKPOINT,
                "%s: tensor %s is of no parameter that this run trains: is the checkpoint of another model, of other "
                "LoRA settings or of another optimizer? Go on with those it was made with, %s",
                l->path, st_at(l->file, i)->name, way_out(l));
    return OK;
}

static const char *storage_text(DType dtype)
{
    return dtype == DT_U8 ? "codes of 8 bits" : dtype_info(dtype)->hf_name;
}

static void tell(const StateLoader *l)
{
    if (l->num_converted)
        log_info("%s: moments were stored as %s, this run keeps them as %s: converted", l->path, storage_text(l->from),
                 storage_text(l->to));
    if (l->num_copies_lost) log_info("%s: its wider copy of the weights is left out: this run updates the weights themselves", l->path);
    if (l->num_copies_taken) log_info("%s: this run's weights begin as its wider copy of them", l->path);
    if (l->num_copies_made) log_info("%s has no wider copy of the weights: this run's begins as they are", l->path);
}

static Status load_items(StateLoader *l)
{
    TRY(check_format(l));
    Item *items;
    for (size_t i = 0, count = list_items(l->arena, l->plan, &items); i < count; i++)
        if (items[i].param) TRY(load_item(l, &items[i]));
    TRY(load_scales(l));
    TRY(check_unused(l));
    tell(l);
    return OK;
}

/* Values are read in place, so they must be aligned. The writer above aligns them. */
static Status check_aligned(const StFile *file)
{
    for (size_t i = 0; i < st_count(file); i++)
        FAIL_IF(!st_is_aligned(st_at(file, i)), ERR_INVALID,
                "%s: tensor \"%.200s\": its data isn't aligned: Surogate didn't write this file", st_at(file, i)->path,
                st_at(file, i)->name);
    return OK;
}

Status checkpoint_states_load(const char *folder, Session *session, bool *out_has_scales)
{
    SCOPED(st_close_at) StFile *file = NULL;
    SCOPED_ARENA(arena);
    StateLoader l = {.arena = &arena, .session = session, .plan = session_plan(session), .folder = folder};
    *out_has_scales = false;
    l.path = arena_printf(&arena, "%s/" OPTIMIZER_NAME, folder);
    TRY(st_open(l.path, &file));
    TRY(check_aligned(file));
    l.file = file;
    l.used = arena_array(&arena, bool, st_count(file) + 1);
    l.values = arena_array(&arena, float, CHUNK_NUMEL);
    l.stored = arena_array(&arena, float, CHUNK_NUMEL);
    l.scales = arena_array(&arena, float, CHUNK_NUMEL / MOMENT_BLOCK);
    for (int is_signed = 0; is_signed < 2; is_signed++) dynamic_map_fill(&l.maps[is_signed], is_signed);
    TRY(load_items(&l));
    *out_has_scales = l.has_scales;
    return OK;
}
