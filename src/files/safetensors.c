/* The reader. Rules are those of huggingface/safetensors: the tensors tile the data exactly, in some order; anything else
 * is an error that names the tensor. */
#include "files/safetensors.h"

#include "base/hash.h"
#include "base/json.h"
#include "base/scoped.h"
#include "files/safetensors_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int         bits, dtype;
} dtypes[ST_DTYPE_COUNT] = {
#define ST_DTYPE(name, bits, dtype) {#name, bits, dtype},
#include "files/safetensors.def"
#undef ST_DTYPE
};

const char *st_dtype_name(StDType dtype)
{
    CHECK(dtype < ST_DTYPE_COUNT);
    return dtypes[dtype].name;
}

int st_dtype_bits(StDType dtype)
{
    CHECK(dtype < ST_DTYPE_COUNT);
    return dtypes[dtype].bits;
}

bool st_dtype_to(StDType dtype, DType *out)
{
    if (dtypes[dtype].dtype < 0) return false;
    *out = (DType)dtypes[dtype].dtype;
    return true;
}

StDType st_dtype_from(DType dtype)
{
    int i = 0;
    while (dtypes[i].dtype != (int)dtype) CHECK(++i < ST_DTYPE_COUNT);
    return (StDType)i;
}

bool st_dtype_is_float(StDType dtype)
{
    return dtype == ST_F32 || dtype == ST_BF16 || dtype == ST_F16 || dtype == ST_F64;
}

/* ---- the tensors of one file ---- */

/* The file and tensor that messages name. */
typedef struct Place {
    const char *path, *tensor;
} Place;

#define FAIL_TENSOR(place, fmt, ...) FAIL(ERR_INVALID, "%s: tensor \"%.200s\": " fmt, (place)->path, (place)->tensor, __VA_ARGS__)

static Status read_dtype(const Place *place, const JsonValue *info, StDType *out)
{
    const char *name;
    if (!json_get_str(info, "dtype", &name)) FAIL_TENSOR(place, "%s", "no \"dtype\" string in the header");
    for (int i = 0; i < ST_DTYPE_COUNT; i++) {
        if (strcmp(name, dtypes[i].name) != 0) continue;
        *out = (StDType)i;
        return OK;
    }
    FAIL_TENSOR(place, "unknown dtype \"%.40s\"; expected one like F32, BF16, F16", name);
}

/* Fills dims, numel and bytes. */
static Status read_shape(const Place *place, const JsonValue *info, StTensor *tensor)
{
    const JsonValue *shape = json_get(info, "shape");
    if (!shape || shape->type != JSON_ARRAY) FAIL_TENSOR(place, "%s", "no \"shape\" array in the header");
    if (shape->count > ST_MAX_NDIM) FAIL_TENSOR(place, "%u dimensions, at most %d are read", shape->count, ST_MAX_NDIM);
    tensor->ndim = (int)shape->count;
    tensor->numel = 1;
    for (int i = 0; i < tensor->ndim; i++) {
        const JsonValue *dim = &shape->items[i];
        if (dim->type != JSON_INT || dim->integer < 0) FAIL_TENSOR(place, "dimension %d of its shape is no integer >= 0", i);
        tensor->dim[i] = dim->integer;
        if (__builtin_mul_overflow(tensor->numel, dim->integer, &tensor->numel)) FAIL_TENSOR(place, "%s", "its shape overflows 64 bits");
    }
    int64_t bits;
    if (__builtin_mul_overflow(tensor->numel, st_dtype_bits(tensor->dtype), &bits)) FAIL_TENSOR(place, "%s", "its size overflows 64 bits");
    if (bits % 8) FAIL_TENSOR(place, "%lld %s elements don't fill whole bytes", (long long)tensor->numel, st_dtype_name(tensor->dtype));
    tensor->bytes = (size_t)(bits / 8);
    return OK;
}

/* data: the file's bytes after the header. */
static Status read_offsets(const Place *place, const JsonValue *info, const FileMap *data, StTensor *tensor)
{
    const JsonValue *offsets = json_get(info, "data_offsets");
    if (!offsets || offsets->type != JSON_ARRAY || offsets->count != 2 || offsets->items[0].type != JSON_INT ||
        offsets->items[1].type != JSON_INT)
        FAIL_TENSOR(place, "%s", "no \"data_offsets\" of two integers in the header");
    int64_t begin = offsets->items[0].integer, end = offsets->items[1].integer;
    if (begin < 0 || end < begin) FAIL_TENSOR(place, "data_offsets [%lld, %lld] are no range", (long long)begin, (long long)end);
    if ((uint64_t)end > data->size)
        FAIL_TENSOR(
            place, "its data ends at byte %lld but the file holds only %zu bytes of data: the file is cut short; download or copy it again",
            (long long)end, data->size);
    if ((uint64_t)(end - begin) != tensor->bytes)
        FAIL_TENSOR(place, "data_offsets span %lld bytes, but its dtype %s and shape need %zu", (long long)(end - begin),
                    st_dtype_name(tensor->dtype), tensor->bytes);
    tensor->data = data->data + begin;
    return OK;
}

static Status read_metadata(StFile *file, const char *path, const JsonValue *metadata, bool keep)
{
    FAIL_IF(metadata->type != JSON_OBJECT, ERR_INVALID, "%s: __metadata__ is no object", path);
    for (uint32_t i = 0; i < metadata->count; i++)
        FAIL_IF(metadata->members[i].value.type != JSON_STRING, ERR_INVALID, "%s: __metadata__ \"%.200s\" is no string", path,
                metadata->members[i].key.data);
    if (!keep) return OK;
    file->num_metadata = metadata->count;
    file->metadata = arena_array(&file->arena, const char *, 2 * (size_t)metadata->count);
    for (uint32_t i = 0; i < metadata->count; i++) {
        const JsonMember *member = &metadata->members[i];
        file->metadata[2 * i] = arena_strndup(&file->arena, member->key.data, member->key.len);
        file->metadata[2 * i + 1] = arena_strndup(&file->arena, member->value.string.data, member->value.string.len);
    }
    return OK;
}

static StTensor *tensor_push(StFile *file)
{
    if (file->count == file->capacity) {
        file->capacity = file->capacity ? file->capacity * 2 : 32;
        file->tensors = realloc_or_end(file->tensors, file->capacity * sizeof *file->tensors);
    }
    return memset(&file->tensors[file->count++], 0, sizeof *file->tensors);
}

static int by_data(const void *a, const void *b)
{
    const StTensor *x = *(const StTensor *const *)a, *y = *(const StTensor *const *)b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Checks that the tensors with indices >= first tile `data`: no overlap, no hole, nothing after the last one. */
static Status check_tiling(const StFile *file, size_t first, const char *path, const FileMap *data, Arena *scratch)
{
    size_t           count = file->count - first;
    const StTensor **order = arena_array(scratch, const StTensor *, count);
    for (size_t i = 0; i < count; i++) order[i] = &file->tensors[first + i];
    qsort(order, count, sizeof *order, by_data);
    const char *at = data->data;
    for (size_t i = 0; i < count; i++) {
        const char *begin = order[i]->data;
        Place       place = {path, order[i]->name};
        if (begin < at) FAIL_TENSOR(&place, "its data overlaps that of \"%.200s\"", order[i - 1]->name);
        if (begin > at) FAIL_TENSOR(&place, "%td bytes before its data belong to no tensor", begin - at);
        at = begin + order[i]->bytes;
    }
    ptrdiff_t rest = data->data + data->size - at;
    FAIL_IF(rest != 0, ERR_INVALID,
            "%s: the last %td bytes belong to no tensor: the file is longer than its header says; download or copy it again", path, rest);
    return OK;
}

static Status read_header(StFile *file, const char *path, const JsonValue *header, const FileMap *data, Arena *scratch)
{
    size_t first = file->count;
    FAIL_IF(header->type != JSON_OBJECT, ERR_INVALID, "%s: the header is no JSON object", path);
    for (uint32_t i = 0; i < header->count; i++) {
        const JsonMember *member = &header->members[i];
        if (str_equal(member->key, "__metadata__")) {
            TRY(read_metadata(file, path, &member->value, first == 0));
            continue;
        }
        Place place = {path, member->key.data};
        if (strlen(member->key.data) != member->key.len) FAIL_TENSOR(&place, "%s", "its name holds a NUL character");
        if (member->value.type != JSON_OBJECT) FAIL_TENSOR(&place, "%s", "its header entry is no object");
        StTensor *tensor = tensor_push(file);
        tensor->name = arena_strndup(&file->arena, member->key.data, member->key.len);
        tensor->path = path;
        TRY(read_dtype(&place, &member->value, &tensor->dtype));
        TRY(read_shape(&place, &member->value, tensor));
        TRY(read_offsets(&place, &member->value, data, tensor));
    }
    return check_tiling(file, first, path, data, scratch);
}

Status st_read_bytes(StFile *file, const char *path, const FileMap *map)
{
    FAIL_IF(map->size < 8, ERR_INVALID, "%s: %zu bytes, too short for a safetensors file", path, map->size);
    uint64_t header_bytes;
    memcpy(&header_bytes, map->data, 8);
    FAIL_IF(header_bytes > ST_MAX_HEADER_BYTES, ERR_INVALID,
            "%s: not a safetensors file: its first 8 bytes ask for a header of %llu bytes (at most %d are allowed)", path,
            (unsigned long long)header_bytes, ST_MAX_HEADER_BYTES);
    FAIL_IF(header_bytes > map->size - 8, ERR_INVALID, "%s: the header of %llu bytes is cut short: the file has %zu bytes", path,
            (unsigned long long)header_bytes, map->size);
    const char *text = map->data + 8;
    FAIL_IF(header_bytes == 0 || text[0] != '{', ERR_INVALID, "%s: the header doesn't start with '{'", path);
    FileMap data = {text + header_bytes, map->size - 8 - header_bytes};
    SCOPED_ARENA(scratch);
    JsonValue header;
    Status    status = json_parse(&scratch, "header", text, header_bytes, &header);
    return status == OK ? read_header(file, path, &header, &data, &scratch) : status_prefix(status, "%s", path);
}

/* ---- all tensors of an StFile ---- */

static uint32_t *slot_of(const StFile *file, const char *name)
{
    size_t at = hash_bytes(name, strlen(name), 0) & (file->table_size - 1);
    while (file->table[at] && strcmp(file->tensors[file->table[at] - 1].name, name) != 0) at = (at + 1) & (file->table_size - 1);
    return &file->table[at];
}

Status st_build_table(StFile *file)
{
    file->table_size = 8;
    while (file->table_size < file->count * 2) file->table_size *= 2;
    file->table = arena_array(&file->arena, uint32_t, file->table_size);
    for (size_t i = 0; i < file->count; i++) {
        uint32_t *slot = slot_of(file, file->tensors[i].name);
        FAIL_IF(*slot, ERR_INVALID, "tensor \"%.200s\" is in both %s and %s", file->tensors[i].name, file->tensors[*slot - 1].path,
                file->tensors[i].path);
        *slot = (uint32_t)i + 1;
    }
    return OK;
}

bool st_is_aligned(const StTensor *tensor)
{
    int align = st_dtype_bits(tensor->dtype) / 8;
    return align <= 1 || (uintptr_t)tensor->data % (unsigned)align == 0;
}

Status st_set_tensors(StFile *file, const StTensor *tensors, size_t count)
{
    file->count = 0;
    for (size_t i = 0; i < count; i++) *tensor_push(file) = tensors[i];
    return st_build_table(file);
}

StFile *st_new(const char *path)
{
    StFile *file = calloc_or_end(1, sizeof *file);
    file->path = arena_strdup(&file->arena, path);
    return file;
}

Status st_open_memory(const char *name, const void *data, size_t size, StFile **out)
{
    SCOPED(st_close_at) StFile *file = st_new(name);
    FileMap                     map = {data, size};
    TRY(st_read_bytes(file, file->path, &map));
    TRY(st_build_table(file));
    *out = file;
    file = NULL;
    return OK;
}

const char *st_shape_text(const int64_t *dim, int ndim, char out[ST_SHAPE_BYTES])
{
    int at = snprintf(out, ST_SHAPE_BYTES, "[");
    for (int i = 0; i < ndim; i++) at += snprintf(out + at, (size_t)(ST_SHAPE_BYTES - at), "%s%lld", i ? "," : "", (long long)dim[i]);
    snprintf(out + at, (size_t)(ST_SHAPE_BYTES - at), "]");
    return out;
}

void st_close(StFile *file)
{
    if (!file) return;
    for (size_t i = 0; i < file->num_shards; i++) file_unmap(&file->shards[i].map);
    free(file->tensors);
    arena_deinit(&file->arena);
    free(file);
}

size_t st_count(const StFile *file)
{
    return file->count;
}

const StTensor *st_at(const StFile *file, size_t index)
{
    CHECK(index < file->count);
    return &file->tensors[index];
}

const StTensor *st_find(const StFile *file, const char *name)
{
    uint32_t slot = *slot_of(file, name);
    return slot ? &file->tensors[slot - 1] : NULL;
}

const char *st_path_at(const StFile *file, size_t index)
{
    return index < file->num_shards ? file->shards[index].path : NULL;
}

const char *st_metadata(const StFile *file, const char *key)
{
    for (size_t i = 0; i < file->num_metadata; i++)
        if (strcmp(file->metadata[2 * i], key) == 0) return file->metadata[2 * i + 1];
    return NULL;
}

Status st_require(const StFile *file, const char *name, const StTensor **out)
{
    *out = st_find(file, name);
    if (*out) return OK;
    SCOPED_ARRAY(const char *, names, file->count + 1);
    for (size_t i = 0; i < file->count; i++) names[i] = file->tensors[i].name;
    const char *near = nearest_name(name, names, file->count);
    FAIL(ERR_NOT_FOUND, "%s: no tensor \"%s\" among its %zu%s%s%s", file->path, name, file->count, near ? "; the nearest is \"" : "",
         near ? near : "", near ? "\"" : "");
}
