/* GGUF, version 3 (2 is read too): "GGUF", counts, keys with typed values, the list of tensors, then the tensors' bytes, each starting at a
 * multiple of 32. All numbers are little-endian. The writer streams the tensors. */
#pragma once

#include "files/file.h"
#include "files/gguf_blocks.h"

/* Arguments for a `%.*s` in a message: at most `most` bytes of `text`, a text of the file. */
#define GGUF_SHOWN(text, most) (int)((text).len < (most) ? (text).len : (most)), (text).data

enum { GGUF_MAX_NDIM = 4, GGUF_ALIGNMENT = 32, GGUF_VERSION = 3 };

/* The types of keys' values. */
typedef enum GgufValueType {
    GGUF_VALUE_U8,
    GGUF_VALUE_I8,
    GGUF_VALUE_U16,
    GGUF_VALUE_I16,
    GGUF_VALUE_U32,
    GGUF_VALUE_I32,
    GGUF_VALUE_F32,
    GGUF_VALUE_BOOL,
    GGUF_VALUE_STRING,
    GGUF_VALUE_ARRAY,
    GGUF_VALUE_U64,
    GGUF_VALUE_I64,
    GGUF_VALUE_F64,
    GGUF_NUM_VALUE_TYPES
} GgufValueType;

/* ---- writing ---- */

/* Keys in the order in which they were put. A zero-initialised GgufKeys is ready to use; texts are copied. */
typedef struct GgufKeys {
    StrBuf   bytes;
    uint64_t count;
} GgufKeys;

void gguf_keys_deinit(GgufKeys *keys);
void gguf_put_u32(GgufKeys *keys, const char *key, uint32_t value);
void gguf_put_f32(GgufKeys *keys, const char *key, float value);
void gguf_put_bool(GgufKeys *keys, const char *key, bool value);
void gguf_put_str(GgufKeys *keys, const char *key, Str value);
void gguf_put_strs(GgufKeys *keys, const char *key, const Str *values, size_t count);
void gguf_put_i32s(GgufKeys *keys, const char *key, const int32_t *values, size_t count);
void gguf_put_f32s(GgufKeys *keys, const char *key, const float *values, size_t count);

/* A tensor to write. dim: the slowest first, as in the whole project; the file has them in the opposite order. The last dim is whole blocks
 * of the type. */
typedef struct GgufDecl {
    const char *name;
    GgufType    type;
    int         ndim;
    int64_t     dim[GGUF_MAX_NDIM];
} GgufDecl;

int64_t gguf_decl_numel(const GgufDecl *decl);

/* Appends exactly the bytes of tensor `index` to `out`. */
typedef Status (*GgufSource)(void *context, size_t index, FileWriter *out);

/* Writes the file, whole or not at all. */
NODISCARD Status gguf_write(const char *path, const GgufKeys *keys, const GgufDecl *decls, size_t count, GgufSource source, void *context);

/* ---- reading ---- */

typedef struct GgufTensor {
    Str         name;
    GgufType    type;
    int         ndim;
    int64_t     dim[GGUF_MAX_NDIM]; /* the slowest first */
    int64_t     numel;
    const void *data; /* the tensor's bytes, as in the file */
} GgufTensor;

typedef struct GgufValue {
    Str           key;
    GgufValueType type, element; /* element: the type of an array's elements */
    uint64_t      count;         /* number of elements of an array; else 1 */
    const char   *data;          /* the first element's bytes in the file, as they are */
    size_t        bytes;         /* size of all elements */
} GgufValue;

typedef struct GgufFile GgufFile; /* an open file; immutable, so any thread may read it */

/* Checks everything in the file: ERR_INVALID says what is cut short or wrong, ERR_UNSUPPORTED names a tensor type that can't be read. */
NODISCARD Status gguf_open(const char *path, GgufFile **out);
/* Opens a file in memory; its bytes must outlive the GgufFile. name: for messages. */
NODISCARD Status gguf_open_memory(const char *name, const void *data, size_t size, GgufFile **out);
void             gguf_close(GgufFile *file); /* NULL is fine */

size_t            gguf_count(const GgufFile *file);
const GgufTensor *gguf_at(const GgufFile *file, size_t index);
const GgufTensor *gguf_find(const GgufFile *file, const char *name); /* NULL: absent */
const GgufValue  *gguf_value(const GgufFile *file, const char *key); /* NULL: absent */

/* Gets a key's value. False, with *out unchanged: the key is absent or of another kind. Any number type counts as a number. */
bool gguf_get_number(const GgufFile *file, const char *key, double *out);
bool gguf_get_bool(const GgufFile *file, const char *key, bool *out);
bool gguf_get_str(const GgufFile *file, const char *key, Str *out);
/* Gets an array, allocated in `arena`: of texts, or of numbers of any number type. */
bool gguf_get_strs(Arena *arena, const GgufFile *file, const char *key, Str **out, size_t *out_count);
bool gguf_get_numbers(Arena *arena, const GgufFile *file, const char *key, double **out, size_t *out_count);
