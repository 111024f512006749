/* safetensors: a file is 8 bytes of header size, a JSON header {name: {dtype, shape, data_offsets}}, then the tensors'
 * bytes, row-major, little-endian, gapless. Reading maps the file and trusts nothing in it; writing streams. */
#pragma once

#include "base/dtype.h"
#include "comm/agree.h"
#include "files/file.h"

enum { ST_MAX_NDIM = 8, ST_MAX_HEADER_BYTES = 100000000 };

typedef enum StDType {
#define ST_DTYPE(name, bits, dtype) ST_##name,
#include "files/safetensors.def"
#undef ST_DTYPE
    ST_DTYPE_COUNT
} StDType;

const char *st_dtype_name(StDType dtype);
int         st_dtype_bits(StDType dtype);
bool        st_dtype_to(StDType dtype, DType *out); /* false: not one that a tensor of ours may hold */
StDType     st_dtype_from(DType dtype);             /* of one that has a safetensors name */
bool        st_dtype_is_float(StDType dtype);       /* one st_to_f32 converts: F32, BF16, F16, F64 */

typedef struct StTensor StTensor;
typedef struct StMade   StMade;

/* Where the values of a tensor come from that stands in no file: it is made of tensors that do. */
struct StMade {
    const StTensor *parts;
    int             num_parts;
    /* Any thread may call these. is_tame: what the parts hold says that every value is finite, and far from what is too large for a float.
     */
    void (*to_f32)(const StMade *made, int64_t first, int64_t count, float *dst);
    bool (*is_tame)(const StMade *made);
};

/* One tensor of an open file; all pointers live until st_close. */
struct StTensor {
    const char   *name;
    StDType       dtype;
    int           ndim; /* 0: a scalar */
    int64_t       dim[ST_MAX_NDIM];
    int64_t       numel;
    const void   *data; /* as it lies in the file, aligned to nothing: see st_is_aligned */
    size_t        bytes;
    const char   *path; /* of the file that holds it */
    const StMade *made; /* NULL: the values are in `data`, else there is none, and dtype is what they are to be stored as */
};

enum { ST_SHAPE_BYTES = 192 };
/* Dims as "[2,3]"; returns `out`. */
const char *st_shape_text(const int64_t *dim, int ndim, char out[ST_SHAPE_BYTES]);

/* Whether elements may be read through a pointer of their type. Files of some writers lie otherwise. */
bool st_is_aligned(const StTensor *tensor);

typedef struct StFile StFile; /* an open file, or folder of shards; immutable, so any thread may read it */

/* path: a file, or a folder with model.safetensors, model.safetensors.index.json or adapter_model.safetensors (the first
 * there is). Errors name file and tensor. The folder's index and its shards must agree. */
NODISCARD Status st_open(const char *path, StFile **out);
void             st_close(StFile *file); /* NULL is fine */
/* The same of a file that stands at this address, for SCOPED. */
static inline void st_close_at(StFile **file)
{
    st_close(*file);
}

/* The same over bytes of the caller's, which must outlive it and start at a multiple of 8. */
NODISCARD Status st_open_memory(const char *name, const void *data, size_t size, StFile **out);

size_t          st_count(const StFile *file);
const StTensor *st_at(const StFile *file, size_t index);          /* in order of the files, then of the header */
const StTensor *st_find(const StFile *file, const char *name);    /* NULL: absent. O(1) */
const char     *st_metadata(const StFile *file, const char *key); /* of the (first) file; NULL: absent */

/* The tensor, or ERR_NOT_FOUND with the file and the nearest name in the message. */
NODISCARD Status st_require(const StFile *file, const char *name, const StTensor **out);

/* These `count` tensors become the file's, in place of those that it has: some may be made of these. ERR_INVALID: two of one name. */
NODISCARD Status st_set_tensors(StFile *file, const StTensor *tensors, size_t count);

/* The files that hold the tensors; NULL: there is no such index. */
const char *st_path_at(const StFile *file, size_t index);

/* Elements [first, first + count) as floats; ERR_UNSUPPORTED unless st_dtype_is_float. */
NODISCARD Status st_to_f32(const StTensor *tensor, int64_t first, int64_t count, float *dst);

/* ERR_INVALID naming tensor and index when an element is NaN or infinite, or becomes so when it is stored as `as` (F32 or BF16).
 * Tensors that st_to_f32 doesn't convert pass. What a tensor is made of is checked first. */
NODISCARD Status st_check_range(const StTensor *tensor, DType as);

/* ---- writing ---- */

typedef struct StDecl {
    const char *name;
    StDType     dtype;
    int         ndim;
    int64_t     dim[ST_MAX_NDIM];
    const void *data; /* or NULL: `source` is asked */
} StDecl;

/* A tensor to write. is_turned: its dims are `dim` in the opposite order. */
static inline StDecl st_decl(const char *name, StDType dtype, int ndim, const int64_t *dim, bool is_turned)
{
    StDecl decl = {.name = name, .dtype = dtype, .ndim = ndim};
    for (int i = 0; i < ndim; i++) decl.dim[i] = dim[is_turned ? ndim - 1 - i : i];
    return decl;
}

size_t st_decl_bytes(const StDecl *decl);

/* Appends exactly st_decl_bytes of tensor `index` to `out`, in pieces as it likes. */
typedef Status (*StSource)(void *context, size_t index, FileWriter *out);

/* metadata: {key, value, key, value, ..., NULL}, or NULL for {"format": "pt"}. Tensors are laid out by descending element
 * size, else in the given order. source may be NULL when every decl has data. The file appears whole or not at all.
 * ERR_INVALID, before anything is written: two tensors of one name. */
NODISCARD Status st_write(const char *path, const StDecl *decls, size_t count, const char *const *metadata, StSource source, void *context);

/* `folder`/`stem`.safetensors, or, when the tensors take more than max_shard_bytes, stem-00001-of-0000N.safetensors and
 * stem.safetensors.index.json. Removes what an earlier save of the other kind left under those names. */
NODISCARD Status st_write_folder(const char *folder, const char *stem, const StDecl *decls, size_t count, size_t max_shard_bytes,
                                 StSource source, void *context);

/* The same by all ranks of `comm` together, into one file each (NULL: by one). A rank's source appends the bytes that it has and skips
 * (file_writer_skip) those of the others. */
NODISCARD Status st_write_together(Comm *comm, const char *path, const StDecl *decls, size_t count, const char *const *metadata,
                                   StSource source, void *context);
NODISCARD Status st_write_folder_together(Comm *comm, const char *folder, const char *stem, const StDecl *decls, size_t count,
                                          size_t max_shard_bytes, StSource source, void *context);
