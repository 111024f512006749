/* Reading GGUF files: opening finds all keys and tensors; their values are read in place. */
#include "files/gguf.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ENTRIES = 1 << 22 };

struct GgufFile {
    Arena       arena;
    FileMap     map;
    bool        is_mapped;
    const char *path;
    GgufTensor *tensors;
    GgufValue  *values;
    size_t      num_tensors, num_values;
    uint64_t    alignment;
};

static const int value_bytes[GGUF_NUM_VALUE_TYPES] = {
    [GGUF_VALUE_U8] = 1,  [GGUF_VALUE_I8] = 1,   [GGUF_VALUE_U16] = 2, [GGUF_VALUE_I16] = 2, [GGUF_VALUE_U32] = 4, [GGUF_VALUE_I32] = 4,
    [GGUF_VALUE_F32] = 4, [GGUF_VALUE_BOOL] = 1, [GGUF_VALUE_U64] = 8, [GGUF_VALUE_I64] = 8, [GGUF_VALUE_F64] = 8}; /* 0: varying length */

/* ---- bytes ---- */

typedef struct Cursor {
    const GgufFile *file;
    size_t          at;
} Cursor;

static Status cut_short(const Cursor *cursor, const char *what)
{
    FAIL(ERR_INVALID, "%s: the file ends within %s, at byte %zu; download or copy it again", cursor->file->path, what,
         cursor->file->map.size);
}

static Status take(Cursor *cursor, size_t bytes, const char *what, const char **out)
{
    if (bytes > cursor->file->map.size - cursor->at) return cut_short(cursor, what);
    *out = cursor->file->map.data + cursor->at;
    cursor->at += bytes;
    return OK;
}

static Status take_number(Cursor *cursor, size_t bytes, const char *what, uint64_t *out)
{
    const char *at;
    *out = 0;
    TRY(take(cursor, bytes, what, &at));
    memcpy(out, at, bytes);
    return OK;
}

static Status take_text(Cursor *cursor, const char *what, Str *out)
{
    uint64_t len;
    TRY(take_number(cursor, 8, what, &len));
    if (len > cursor->file->map.size) return cut_short(cursor, what);
    TRY(take(cursor, (size_t)len, what, &out->data));
    out->len = (size_t)len;
    return OK;
}

/* ---- keys ---- */

static Status take_type(Cursor *cursor, const GgufValue *value, GgufValueType *out)
{
    uint64_t type;
    TRY(take_number(cursor, 4, "the type of a key", &type));
    FAIL_IF(type >= GGUF_NUM_VALUE_TYPES, ERR_INVALID, "%s: key %.*s has type %llu; 0 to 12 are known", cursor->file->path,
            GGUF_SHOWN(value->key, 200), (unsigned long long)type);
    *out = (GgufValueType)type;
    return OK;
}

static Status skip_elements(Cursor *cursor, const GgufValue *value)
{
    const char *at;
    Str         text;
    size_t      one = (size_t)value_bytes[value->element];
    FAIL_IF(value->element == GGUF_VALUE_ARRAY, ERR_UNSUPPORTED, "%s: key %.*s is an array of arrays", cursor->file->path,
            GGUF_SHOWN(value->key, 200));
    if (one && value->count > cursor->file->map.size / one) return cut_short(cursor, "a key");
    if (one) return take(cursor, (size_t)value->count * one, "a key", &at);
    for (uint64_t i = 0; i < value->count; i++) TRY(take_text(cursor, "a key", &text));
    return OK;
}

static Status read_value(Cursor *cursor, GgufValue *value)
{
    TRY(take_text(cursor, "a key", &value->key));
    TRY(take_type(cursor, value, &value->type));
    value->element = value->type;
    value->count = 1;
    if (value->type == GGUF_VALUE_ARRAY) {
        TRY(take_type(cursor, value, &value->element));
        TRY(take_number(cursor, 8, "a key", &value->count));
    }
    value->data = cursor->file->map.data + cursor->at;
    size_t begin = cursor->at;
    TRY(skip_elements(cursor, value));
    value->bytes = cursor->at - begin;
    return OK;
}

/* ---- tensors ---- */

static Status wrong_tensor(const Cursor *cursor, const GgufTensor *tensor, const char *what)
{
    FAIL(ERR_INVALID, "%s: tensor %.*s: %s", cursor->file->path, GGUF_SHOWN(tensor->name, 200), what);
}

static Status read_dims(Cursor *cursor, GgufTensor *tensor)
{
    uint64_t ndim, dim;
    TRY(take_number(cursor, 4, "a tensor's entry", &ndim));
    if (ndim < 1 || ndim > GGUF_MAX_NDIM) return wrong_tensor(cursor, tensor, "expected 1 to 4 dims");
    tensor->ndim = (int)ndim;
    tensor->numel = 1;
    for (int i = tensor->ndim - 1; i >= 0; i--) {
        TRY(take_number(cursor, 8, "a tensor's entry", &dim));
        tensor->dim[i] = (int64_t)dim;
        if (dim < 1 || dim > INT64_MAX || __builtin_mul_overflow(tensor->numel, tensor->dim[i], &tensor->numel) ||
            tensor->numel > INT64_MAX / 8)
            return wrong_tensor(cursor, tensor, "its shape is empty or too large");
    }
    return OK;
}

/* *out_offset: the offset of the tensor's data in bytes, from where the data section begins. */
static Status read_tensor(Cursor *cursor, GgufTensor *tensor, uint64_t *out_offset)
{
    uint64_t type;
    TRY(take_text(cursor, "a tensor's entry", &tensor->name));
    TRY(read_dims(cursor, tensor));
    TRY(take_number(cursor, 4, "a tensor's entry", &type));
    TRY(take_number(cursor, 8, "a tensor's entry", out_offset));
    FAIL_IF(!gguf_type_name((uint32_t)type), ERR_UNSUPPORTED,
            "%s: tensor %.*s is of GGUF's type %llu; F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K are read",
            cursor->file->path, GGUF_SHOWN(tensor->name, 200), (unsigned long long)type);
    tensor->type = (GgufType)type;
    if (tensor->dim[tensor->ndim - 1] % gguf_block(tensor->type)) return wrong_tensor(cursor, tensor, "its rows aren't whole blocks");
    return OK;
}

static int by_name(const void *a, const void *b)
{
    const GgufTensor *x = a, *y = b;
    size_t            len = x->name.len < y->name.len ? x->name.len : y->name.len;
    int               order = memcmp(x->name.data, y->name.data, len);
    return order ? order : (x->name.len > y->name.len) - (x->name.len < y->name.len);
}

static Status place_tensors(Cursor *cursor, GgufFile *file, const uint64_t *offsets)
{
    uint64_t start = (cursor->at + file->alignment - 1) / file->alignment * file->alignment;
    uint64_t room = start > file->map.size ? 0 : file->map.size - start;
    for (size_t i = 0; i < file->num_tensors; i++) {
        GgufTensor *tensor = &file->tensors[i];
        uint64_t    bytes = (uint64_t)gguf_bytes(tensor->type, tensor->numel);
        if (offsets[i] % file->alignment) return wrong_tensor(cursor, tensor, "its data isn't aligned");
        if (offsets[i] > room || bytes > room - offsets[i])
            return wrong_tensor(cursor, tensor, "its data isn't in the file: that is cut short; download or copy it again");
        tensor->data = file->map.data + start + offsets[i];
    }
    if (file->num_tensors) qsort(file->tensors, file->num_tensors, sizeof *file->tensors, by_name);
    for (size_t i = 1; i < file->num_tensors; i++)
        if (by_name(&file->tensors[i - 1], &file->tensors[i]) == 0) return wrong_tensor(cursor, &file->tensors[i], "it is there twice");
    return OK;
}

/* ---- reading the file ---- */

static Status read_counts(Cursor *cursor, GgufFile *file)
{
    uint64_t    version, tensors, values;
    const char *magic;
    FAIL_IF(file->map.size < 4 || memcmp(file->map.data, "GGUF", 4) != 0, ERR_INVALID, "%s is no GGUF file: it doesn't begin with GGUF",
            file->path);
    TRY(take(cursor, 4, "its head", &magic));
    TRY(take_number(cursor, 4, "its head", &version));
    FAIL_IF(version != 2 && version != 3, ERR_UNSUPPORTED, "%s: version %llu of GGUF; 2 and 3 are read", file->path,
            (unsigned long long)version);
    TRY(take_number(cursor, 8, "its head", &tensors));
    TRY(take_number(cursor, 8, "its head", &values));
    /* each entry takes some bytes: refuse counts that the file can't hold, before allocating memory */
    if (tensors > file->map.size / 32 || values > file->map.size / 12 || tensors > MOST_ENTRIES || values > MOST_ENTRIES)
        return cut_short(cursor, "its keys and tensors");
    file->num_tensors = (size_t)tensors;
    file->num_values = (size_t)values;
    return OK;
}

static Status read_alignment(GgufFile *file)
{
    double alignment = GGUF_ALIGNMENT;
    gguf_get_number(file, "general.alignment", &alignment);
    FAIL_IF(!(alignment >= 1 && alignment <= 1 << 20) || alignment != (double)(uint64_t)alignment, ERR_INVALID,
            "%s: general.alignment is %g; expected a whole number from 1 to %d", file->path, alignment, 1 << 20);
    file->alignment = (uint64_t)alignment;
    return OK;
}

static Status read_file(GgufFile *file)
{
    Cursor cursor = {file, 0};
    TRY(read_counts(&cursor, file));
    file->values = arena_array(&file->arena, GgufValue, file->num_values + 1);
    file->tensors = arena_array(&file->arena, GgufTensor, file->num_tensors + 1);
    uint64_t *offsets = arena_array(&file->arena, uint64_t, file->num_tensors + 1);
    for (size_t i = 0; i < file->num_values; i++) TRY(read_value(&cursor, &file->values[i]));
    TRY(read_alignment(file));
    for (size_t i = 0; i < file->num_tensors; i++) TRY(read_tensor(&cursor, &file->tensors[i], &offsets[i]));
    return place_tensors(&cursor, file, offsets);
}

static Status finish(GgufFile *file, GgufFile **out)
{
    Status status = read_file(file);
    if (status == OK)
        *out = file;
    else
        gguf_close(file);
    return status;
}

static GgufFile *file_new(const char *path)
{
    GgufFile *file = calloc_or_end(1, sizeof *file);
    file->path = arena_strdup(&file->arena, path);
    return file;
}

Status gguf_open(const char *path, GgufFile **out)
{
    FileMap map;
    TRY(file_map(path, &map));
    GgufFile *file = file_new(path);
    file->map = map;
    file->is_mapped = true;
    return finish(file, out);
}

Status gguf_open_memory(const char *name, const void *data, size_t size, GgufFile **out)
{
    GgufFile *file = file_new(name);
    file->map = (FileMap){data, size};
    return finish(file, out);
}

void gguf_close(GgufFile *file)
{
    if (!file) return;
    if (file->is_mapped) file_unmap(&file->map);
    arena_deinit(&file->arena);
    free(file);
}

/* ---- looking up keys and tensors ---- */

size_t gguf_count(const GgufFile *file)
{
    return file->num_tensors;
}

const GgufTensor *gguf_at(const GgufFile *file, size_t index)
{
    return &file->tensors[index];
}

const GgufTensor *gguf_find(const GgufFile *file, const char *name)
{
    GgufTensor wanted = {.name = str_of(name)};
    return file->num_tensors ? bsearch(&wanted, file->tensors, file->num_tensors, sizeof wanted, by_name) : NULL;
}

const GgufValue *gguf_value(const GgufFile *file, const char *key)
{
    for (size_t i = 0; i < file->num_values; i++)
        if (str_equal(file->values[i].key, key)) return &file->values[i];
    return NULL;
}

static double signed_of(uint64_t bits, int bytes)
{
    int shift = 64 - 8 * bytes;
    return (double)((int64_t)(bits << shift) >> shift);
}

/* Reads the number at `data`; false: the type isn't a number. */
static bool number_of(GgufValueType type, const char *data, double *out)
{
    uint64_t bits = 0;
    float    real;
    memcpy(&bits, data, (size_t)value_bytes[type]);
    switch (type) {
    case GGUF_VALUE_U8:
    case GGUF_VALUE_U16:
    case GGUF_VALUE_U32:
    case GGUF_VALUE_U64:
        *out = (double)bits;
        return true;
    case GGUF_VALUE_I8:
    case GGUF_VALUE_I16:
    case GGUF_VALUE_I32:
    case GGUF_VALUE_I64:
        *out = signed_of(bits, value_bytes[type]);
        return true;
    case GGUF_VALUE_F32:
        memcpy(&real, data, 4);
        *out = (double)real;
        return true;
    case GGUF_VALUE_F64:
        memcpy(out, data, 8);
        return true;
    default:
        return false;
    }
}

bool gguf_get_number(const GgufFile *file, const char *key, double *out)
{
    const GgufValue *value = gguf_value(file, key);
    return value && value->type != GGUF_VALUE_ARRAY && number_of(value->type, value->data, out);
}

bool gguf_get_bool(const GgufFile *file, const char *key, bool *out)
{
    const GgufValue *value = gguf_value(file, key);
    if (!value || value->type != GGUF_VALUE_BOOL) return false;
    *out = *value->data != 0;
    return true;
}

/* Reads the text at *at and moves *at past it. It is known to be whole: opening the file has checked. */
static Str text_at(const char **at)
{
    uint64_t len;
    memcpy(&len, *at, 8);
    Str text = {*at + 8, (size_t)len};
    *at += 8 + len;
    return text;
}

bool gguf_get_str(const GgufFile *file, const char *key, Str *out)
{
    const GgufValue *value = gguf_value(file, key);
    if (!value || value->type != GGUF_VALUE_STRING) return false;
    const char *at = value->data;
    *out = text_at(&at);
    return true;
}

bool gguf_get_strs(Arena *arena, const GgufFile *file, const char *key, Str **out, size_t *out_count)
{
    const GgufValue *value = gguf_value(file, key);
    if (!value || value->type != GGUF_VALUE_ARRAY || value->element != GGUF_VALUE_STRING) return false;
    const char *at = value->data;
    *out_count = (size_t)value->count;
    *out = arena_array(arena, Str, *out_count + 1);
    for (size_t i = 0; i < *out_count; i++) (*out)[i] = text_at(&at);
    return true;
}

bool gguf_get_numbers(Arena *arena, const GgufFile *file, const char *key, double **out, size_t *out_count)
{
    const GgufValue *value = gguf_value(file, key);
    double           probe;
    if (!value || value->type != GGUF_VALUE_ARRAY) return false;
    *out_count = (size_t)value->count;
    *out = arena_array(arena, double, *out_count + 1);
    for (size_t i = 0; i < *out_count; i++) {
        if (!number_of(value->element, value->data + i * (size_t)value_bytes[value->element], &probe)) return false;
        (*out)[i] = probe;
    }
    return true;
}
