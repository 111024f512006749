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
bool        st_dtype_to(StDType dtype, DType *out); /* false: no DType corresponds to it */
StDType     st_dtype_from(DType dtype);             /* for dtypes that have a safetensors name */
bool        st_dtype_is_float(StDType dtype);       /* whether st_to_f32 converts it: F32, BF16, F16, F64 */

typedef struct StTensor StTensor;
typedef struct StMade   StMade;

/* How a tensor that no file stores gets its values: it is made of tensors that a file does store. */
struct StMade {
    const StTensor *parts;
    int             num_parts;
    /* Any thread may call these functions. is_tame: the parts show that every value is finite, and far below a float's limit. */
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
    const void   *data; /* the tensor's bytes, as in the file; may be unaligned: see st_is_aligned */
    size_t        bytes;
    const char   *path; /* path of the file that contains the tensor */
    const StMade *made; /* NULL: the values are in `data`. Else data is unset, and the values are to be stored as `dtype` */
};

enum { ST_SHAPE_BYTES = 192 };
/* Dims as "[2,3]"; returns `out`. */
const char *st_shape_text(const int64_t *dim, int ndim, char out[ST_SHAPE_BYTES]);

/* Whether elements may be read through a pointer of their type: some writers don't align tensors. */
bool st_is_aligned(const StTensor *tensor);

typedef struct StFile StFile; /* an open file, or folder of shards; immutable, so any thread may read it */

/* path: a file, or a folder with model.safetensors, model.safetensors.index.json or adapter_model.safetensors (the first that exists).
 * Errors name file and tensor. The folder's index and its shards must agree. */
NODISCARD Status st_open(const char *path, StFile **out);
void             st_close(StFile *file); /* NULL is fine */
/* Closes *file, for SCOPED. */
static inline void st_close_at(StFile **file)
{
    st_close(*file);
}

/* Opens a file in memory. Its bytes must outlive the StFile and start at a multiple of 8. name: for messages. */
NODISCARD Status st_open_memory(const char *name, const void *data, size_t size, StFile **out);

size_t          st_count(const StFile *file);
const StTensor *st_at(const StFile *file, size_t index);          /* ordered by file, then as in the file's header */
const StTensor *st_find(const StFile *file, const char *name);    /* NULL: absent. O(1) */
const char     *st_metadata(const StFile *file, const char *key); /* metadata of the first file; NULL: the key is absent */

/* Finds the tensor; ERR_NOT_FOUND names the file and the nearest name. */
NODISCARD Status st_require(const StFile *file, const char *name, const StTensor **out);

/* Replaces the file's tensors by these `count` tensors, which may include old ones and tensors made of old ones. ERR_INVALID: two have the
 * same name. */
NODISCARD Status st_set_tensors(StFile *file, const StTensor *tensors, size_t count);

/* The paths of the files that hold tensors, by index; NULL: `index` is past the last file. */
const char *st_path_at(const StFile *file, size_t index);

/* Converts elements [first, first + count) to floats; ERR_UNSUPPORTED unless st_dtype_is_float. */
NODISCARD Status st_to_f32(const StTensor *tensor, int64_t first, int64_t count, float *dst);

/* ERR_INVALID, with tensor and index, if an element is NaN or infinite, or would be when stored as `as` (F32 or BF16). Tensors pass if
 * st_to_f32 can't convert their dtype. The parts of a made tensor are checked first. */
NODISCARD Status st_check_range(const StTensor *tensor, DType as);

/* ---- writing ---- */

typedef struct StDecl {
    const char *name;
    StDType     dtype;
    int         ndim;
    int64_t     dim[ST_MAX_NDIM];
    const void *data; /* NULL: `source` appends the bytes */
} StDecl;

/* Declares a tensor to write. is_turned: its dims are `dim` in the opposite order. */
static inline StDecl st_decl(const char *name, StDType dtype, int ndim, const int64_t *dim, bool is_turned)
{
    StDecl decl = {.name = name, .dtype = dtype, .ndim = ndim};
    for (int i = 0; i < ndim; i++) decl.dim[i] = dim[is_turned ? ndim - 1 - i : i];
    return decl;
}

size_t st_decl_bytes(const StDecl *decl);

/* Appends exactly st_decl_bytes of tensor `index` to `out`, in any number of pieces. */
typedef Status (*StSource)(void *context, size_t index, FileWriter *out);

/* metadata: {key, value, key, value, ..., NULL}, or NULL for {"format": "pt"}. Tensors are laid out by descending element size, then in the
 * given order. source may be NULL if every decl has data. The file appears whole or not at all. ERR_INVALID, before anything is written:
 * two tensors have the same name. */
NODISCARD Status st_write(const char *path, const StDecl *decls, size_t count, const char *const *metadata, StSource source, void *context);

/* Writes `folder`/`stem`.safetensors or, if the tensors take more than max_shard_bytes, stem-00001-of-0000N.safetensors and
 * stem.safetensors.index.json. An earlier save's single file is removed if this one writes shards, and its index if this one writes a
 * single file. */
NODISCARD Status st_write_folder(const char *folder, const char *stem, const StDecl *decls, size_t count, size_t max_shard_bytes,
                                 StSource source, void *context);

/* Like st_write, but all ranks of `comm` write each file together (NULL: one process does). A rank's source appends the bytes that it
 * holds, and skips (file_writer_skip) the bytes of the other ranks. */
NODISCARD Status st_write_together(Comm *comm, const char *path, const StDecl *decls, size_t count, const char *const *metadata,
                                   StSource source, void *context);
NODISCARD Status st_write_folder_together(Comm *comm, const char *folder, const char *stem, const StDecl *decls, size_t count,
                                          size_t max_shard_bytes, StSource source, void *context);
