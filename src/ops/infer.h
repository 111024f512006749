/* What every op's infer, cost and kernels share: checks of inputs whose messages say what was expected, sums of bytes, blocks of rows. */
#pragma once

#include "base/pool.h"
#include "base/small_float.h"
#include "ops/attrs.h"
#include "ops/ops.h"
#include "ops/vec.h"

/* Dims for infer_input; -1: any. */
#define DIMS(...) \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) \
    { \
        __VA_ARGS__ \
    }

/* Checks that input k is present and has one of these dtypes and these dims. name: the input's name in ops.def, for the message. */
NODISCARD Status infer_input(const Node *node, int k, const char *name, DTypeSet dtypes, int ndim, const int64_t *dims);

/* Checks that input k has one of these dtypes and the dims of `like`. */
NODISCARD Status infer_like(const Node *node, int k, const char *name, DTypeSet dtypes, const TensorType *like);

/* Checks that input k is a float tensor of at least min_ndim dims. */
NODISCARD Status infer_float(const Node *node, int k, const char *name, int min_ndim);

/* *type: the type that the op gives a parameter's gradient by itself. Its dtype becomes that of input `acc` if present (whose type is
 * checked), else attribute dw_dtype if set. */
NODISCARD Status infer_dw(const Node *node, int acc, const char *name, int64_t dw_dtype, TensorType *type);

/* Infers the product of input 0 (...,K) by codes b (M,K), of an op with ScaledLinearAttrs: [bias (M)], [acc (...,M)] -> y (...,M), of acc's
 * dtype if acc is present. */
NODISCARD Status infer_product(Node *node, int b, int bias, int acc);

/* Infers the types of the codes that the op also makes of an output (OpCodes). The output's type must be set. Attribute `codes` 0: no
 * codes. */
NODISCARD Status infer_codes(Node *node, int64_t codes);

/* Checks a norm's attribute eps, which is added to a mean square: at least 0. */
NODISCARD Status infer_eps(double eps);

/* Whether codes can be made of an output of this type: rows have a multiple of `whole` elements, and all present inputs in the bit mask
 * `ins` have its dtype. */
bool codes_fit(const Node *node, const TensorType *rows, int64_t whole, uint32_t ins);

/* Attribute rows<m> of DequantiseAttrs. */
#define DEQUANTISE_ATTR(m) \
    { \
        "rows" #m, ATTR_TYPE_INT, offsetof(DequantiseAttrs, rows) + (m) * sizeof(int64_t), 0, false, false \
    }
#define DEQUANTISE_ROWS DEQUANTISE_ATTR(0), DEQUANTISE_ATTR(1), DEQUANTISE_ATTR(2)

/* Checks the attributes against a weight of n rows: its dtype, returned in *out, is f32 or bf16; members, if any, have n rows together. */
NODISCARD Status infer_dequantised(const DequantiseAttrs *attrs, int64_t n, DType *out);

/* The type of scales of e2m1 codes of this type, row by row or in tiles: ops/lowbit/nvfp4.h says where each scale is stored. */
TensorType nvfp4_scale_type(const TensorType *codes, bool tiled);

/* A type with the dims of `like`, and another dtype. */
static inline TensorType type_as(const TensorType *like, DType dtype)
{
    TensorType type = *like;
    type.dtype = dtype;
    return type;
}

/* A type with the dims of `like` except the last, and another dtype. */
static inline TensorType type_without_last(const TensorType *like, DType dtype)
{
    TensorType type = type_as(like, dtype);
    type.dim[--type.ndim] = 0;
    return type;
}

/* Cost of an op that reads each input once, writes each wanted output once and does `flops` arithmetic operations. An accumulate input
 * counts as read. */
OpCost cost_streaming(const Node *node, double flops);

/* Bit k of a want mask for grad_emit; 0 unless `wanted`. */
static inline uint32_t want_bit(bool wanted, int k)
{
    return wanted ? 1u << k : 0;
}

/* Floats of scratch on the stack, for a piece of a row in bf16. */
enum { TILE = 1024 };

/* Elements [at, at + count) of a tensor as f32: in place, or converted into scratch. */
static inline const float *tile_load(const TensorView *t, int64_t at, int64_t count, float *scratch)
{
    return vec_load_row(vec_at(t->data, t->type.dtype, at), t->type.dtype, count, scratch);
}

/* Where to compute elements [at, at + count): in place or in scratch; tile_store finishes it. */
static inline float *tile_result(const TensorView *t, int64_t at, float *scratch)
{
    return vec_result_row(vec_at_mut(t->data, t->type.dtype, at), t->type.dtype, scratch);
}

static inline void tile_store(const TensorView *t, int64_t at, const float *src, int64_t count)
{
    vec_store_row(vec_at_mut(t->data, t->type.dtype, at), t->type.dtype, src, count);
}

static inline void tile_add(const TensorView *t, int64_t at, const float *src, int64_t count)
{
    vec_add_row(vec_at_mut(t->data, t->type.dtype, at), t->type.dtype, src, count);
}

/* The largest of `most` and the magnitudes (small_magnitude) of x[0, count). */
static inline uint32_t most_magnitude(uint32_t most, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) most = small_magnitude(x[i]) > most ? small_magnitude(x[i]) : most;
    return most;
}

/* The dtype that loops over these tensors compute on (VEC_OF): bf16 if all that are present are bf16, else f32. */
#define TILE_DTYPE(...) \
    tile_dtype((const TensorView *const[]){__VA_ARGS__}, (int)(sizeof((const TensorView *const[]){__VA_ARGS__}) / sizeof(void *)))
static inline DType tile_dtype(const TensorView *const *of, int count)
{
    for (int i = 0; i < count; i++)
        if (of[i]->data && of[i]->type.dtype != DT_BF16) return DT_F32;
    return DT_BF16;
}

/* Like tile_load and tile_result, for loops that compute on `dtype` (TILE_DTYPE): scratch is used only if that is f32. */
static inline const void *tile_in(const TensorView *t, DType dtype, int64_t at, int64_t count, float *scratch)
{
    return dtype == DT_F32 ? tile_load(t, at, count, scratch) : vec_at(t->data, dtype, at);
}

static inline void *tile_out(const TensorView *t, DType dtype, int64_t at, float *scratch)
{
    return dtype == DT_F32 ? tile_result(t, at, scratch) : vec_at_mut(t->data, dtype, at);
}

/* Finishes what tile_out began. */
static inline void tile_done(const TensorView *t, DType dtype, int64_t at, const void *result, int64_t count)
{
    if (dtype == DT_F32) tile_store(t, at, result, count);
}

/* Copies elements of one tensor to another, which may have another dtype. */
static inline void tile_copy(const TensorView *to, int64_t to_at, const TensorView *from, int64_t from_at, int64_t count)
{
    float scratch[TILE];
    if (to->type.dtype == from->type.dtype) {
        void       *dst = vec_at_mut(to->data, to->type.dtype, to_at);
        const void *src = vec_at(from->data, to->type.dtype, from_at);
        if (dst != src) memcpy(dst, src, (size_t)(dtype_bytes(to->type.dtype, count)));
        return;
    }
    for (int64_t i = 0; i < count; i += TILE) {
        int64_t n = count - i < TILE ? count - i : TILE;
        tile_store(to, to_at + i, tile_load(from, from_at + i, n, scratch), n);
    }
}

static inline int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Rows of a task: about 16 Ki elements, so that a task is worth its start. Depends on shapes alone. */
static inline int64_t rows_per_task(int64_t cols)
{
    return max_i64(1, 16384 / max_i64(cols, 1));
}

/* Rows of a task of an op that only moves memory: up to 64 Ki elements if each worker still has 8 tasks. Larger tasks have fewer borders:
 * where two workers write side by side, each fetches cache lines of the other. */
static inline int64_t rows_moved(const KernelArgs *args, int64_t rows, int64_t cols)
{
    int64_t share = rows * cols / (8 * pool_num_workers(args->pool));
    return max_i64(1, max_i64(16384, min_i64(65536, share)) / max_i64(cols, 1));
}

/* Sums over rows: rows are cut into at most MAX_CHUNKS fixed chunks. Each chunk is a task with a partial sum (cols f32 in workspace);
 * partial sums are added in order. */
enum { MAX_CHUNKS = 64, MIN_CHUNK_ROWS = 32 };
static inline int64_t chunk_rows(int64_t rows)
{
    return max_i64(MIN_CHUNK_ROWS, div_up(rows, MAX_CHUNKS));
}
static inline int64_t num_chunks(int64_t rows)
{
    return div_up(rows, chunk_rows(rows));
}

/* Chunks of a task: up to 4, if each worker still has 8 tasks. */
static inline int64_t chunks_moved(const KernelArgs *args, int64_t rows)
{
    return max_i64(1, min_i64(4, num_chunks(rows) / (8 * pool_num_workers(args->pool))));
}

/* out[0, cols) (+)= the sum of `count` rows of partial sums, `stride` floats apart, in order of rows. */
void chunks_combine(const TensorView *out, bool accumulate, const float *partial, int64_t count, int64_t stride, int64_t cols);
