/* lora_add on CUDA.
 *
 * mma: bound by memory: y is read and written once, 16 bytes a thread. A warp has 64 columns of one member and 16 tokens at a time, and
 * computes 32 of the columns at a time. Columns of a product's tile are permuted so that a thread's results of four tiles are eight
 * neighbouring columns: tile j's column c stands for column (c / 2) * 8 + j * 2 + c % 2 of the 32.
 *
 * rows: few rows while decoding, and other shapes, by the kernels of lora_rows and with their bits. */
#include "ops/mma.cuh"
#include "ops/products/lora.cuh"
#include "ops/products/lora_rows.cuh"

/* ---- mma ---- */

enum { ADD_SLAB = 64, ADD_GROUP = 32, ADD_WARPS = 8, ADD_TOKENS = 32 /* tokens of a block */, MOST_FEW = 64 };

static __device__ __forceinline__ uint32_t load_pair(const bf16 *p)
{
    return *reinterpret_cast<const uint32_t *>(p);
}

/* Right operands: 32 columns, which are rows of b from `col` on; rows at `end` and after are zeros. */
template <int R> static __device__ __forceinline__ void load_up(uint32_t (&up)[(R + 15) / 16][4][2], const bf16 *b, int col, int end)
{
    int lane = threadIdx.x & 31, c = lane >> 2, k = (lane & 3) * 2;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        int         row = col + (c >> 1) * 8 + j * 2 + (c & 1);
        const bf16 *from = b + (int64_t)row * R + k;
#pragma unroll
        for (int s = 0; s < (R + 15) / 16; s++) {
            up[s][j][0] = row < end ? load_pair(from + s * 16) : 0;
            up[s][j][1] = row < end && R > 8 ? load_pair(from + s * 16 + 8) : 0;
        }
    }
}

/* Left operands: tokens t and t + 8 of this lane's quad; tokens at `end` and after are zeros. */
template <int R>
static __device__ __forceinline__ void load_down(uint32_t (&down)[(R + 15) / 16][4], const bf16 *h, int64_t stride, int64_t t, int64_t end)
{
    int k = (threadIdx.x & 3) * 2;
#pragma unroll
    for (int s = 0; s < (R + 15) / 16; s++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const bf16 *from = h + (t + half * 8) * stride + k + s * 16;
            bool        there = t + half * 8 < end;
            down[s][half] = there ? load_pair(from) : 0;
            down[s][2 + half] = there && R > 8 ? load_pair(from + 8) : 0;
        }
}

/* A block has 32 tokens and 8 slabs of columns, one a warp. `across`: blocks for all slabs. */
template <int R>
static __global__ void __launch_bounds__(ADD_WARPS * 32)
    lora_add_mma(bf16 *y, const bf16 *h, const bf16 *b, const __grid_constant__ LoraLayout l, int across)
{
    enum { STEPS = (R + 15) / 16, TURNS = ADD_TOKENS / 16 };
    int slab = (int)(blockIdx.x % across * ADD_WARPS + (threadIdx.x >> 5)), lane = threadIdx.x & 31;
    if (slab >= l.num_slabs) return;
    int     m = lora_member_of_slab(l, slab), col = (slab - l.slab[m]) * ADD_SLAB;
    int64_t t0 = (int64_t)(blockIdx.x / across) * ADD_TOKENS + (lane >> 2);
    h += m * R;
    b += (int64_t)l.first[m] * R;
#pragma unroll
    for (int g = 0; g < ADD_SLAB / ADD_GROUP; g++, col += ADD_GROUP) {
        uint32_t up[STEPS][4][2];
        int      mine = col + (lane & 3) * 8;
        bool     inside = mine < l.rows[m];
        uint4    old[TURNS][2];
#pragma unroll
        for (int i = 0; i < 2 * TURNS; i++) {
            int64_t t = t0 + i * 8;
            if (inside && t < l.tokens) old[i / 2][i % 2] = *reinterpret_cast<const uint4 *>(y + t * l.y_stride + l.col[m] + mine);
        }
        load_up<R>(up, b, col, l.rows[m]);
#pragma unroll
        for (int turn = 0; turn < TURNS; turn++) {
            uint32_t down[STEPS][4];
            float    sum[4][4] = {};
            load_down<R>(down, h, l.h_stride, t0 + turn * 16, l.tokens);
#pragma unroll
            for (int s = 0; s < STEPS; s++)
#pragma unroll
                for (int j = 0; j < 4; j++) mma(sum[j], down[s], up[s][j][0], up[s][j][1]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int64_t    t = t0 + turn * 16 + half * 8;
                Pack<bf16> pack;
                pack.words = old[turn][half];
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        pack.v[j * 2 + i] = from_float<bf16>(fmaf(l.alpha, sum[j][2 * half + i], to_float(pack.v[j * 2 + i])));
                if (inside && t < l.tokens) *reinterpret_cast<uint4 *>(y + t * l.y_stride + l.col[m] + mine) = pack.words;
            }
        }
    }
}

static bool mma_match(const Node *node, CudaDevice *)
{
    return lora_mma_fits((const LoraAttrs *)node->attrs, &node->in[0]->type, &node->in[2]->type);
}

static Status mma_run(const KernelArgs *args)
{
    const TensorView *y = &args->out[0], *h = &args->in[1], *b = &args->in[2];
    LoraLayout        l = lora_layout((const LoraAttrs *)args->attrs, &y->type, &h->type, &b->type, ADD_SLAB);
    int               across = (int)cuda_div_up(l.num_slabs, ADD_WARPS);
    unsigned          blocks = (unsigned)(across * cuda_div_up(l.tokens, ADD_TOKENS));
    LORA_RANK(l.r, lora_add_mma<R>
              <<<blocks, ADD_WARPS * 32, 0, cuda_stream(args)>>>((bf16 *)y->data, (const bf16 *)h->data, (const bf16 *)b->data, l, across));
    return CUDA_LAUNCHED();
}

static bool rows_match(const Node *node, CudaDevice *)
{
    return node->flags & NODE_ROWS_ALONE;
}

static bool few_match(const Node *node, CudaDevice *device)
{
    return rows_match(node, device) && type_rows(&node->in[0]->type) <= MOST_FEW;
}

PRODUCT_KERNELS(lora_add)
CUDA_KERNELS(lora_add, {.dtypes = DT_SET_DECODE, .min_sm = 80, .run = lora_rows_of_one, .name = "few rows", .match = few_match},
             {.dtypes = DT_SET_BF16, .min_sm = 80, .run = mma_run, .name = "mma", .match = mma_match},
             {.dtypes = DT_SET_DECODE, .min_sm = 80, .run = lora_rows_of_one, .name = "rows", .match = rows_match}, PRODUCT_ROWS(lora_add))
