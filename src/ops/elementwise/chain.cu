/* chain on CUDA: an interpreter. A thread takes 8 adjacent elements through all steps, with the latest result in registers. Results that
 * are read later than by the next step are kept in the thread's own column of shared memory. Inputs with the result's dims are
 * prefetched into that column, STAGES - 1 iterations ahead, so that memory is busy while steps are computed; other inputs are read
 * through the caches. All threads of a block run the same step, so its code is read once. */
#include "device/cuda/vec_f16.cuh"
#include "ops/map.cuh"
#include "ops/mma.cuh"

#include "ops/elementwise/broadcast.h"
#include "ops/elementwise/chain.h"
#include "ops/elementwise/functions.cuh"

enum { THREADS = 128, PACK = 8, STAGES = 3, SHARED_MOST = 48 << 10 };

/* How an input is broadcast. SAME: not at all, it has the result's offsets. ROW: one row for all rows. MIXED: otherwise. */
enum { PLACE_SAME, PLACE_ROW, PLACE_MIXED };

typedef struct ChainInput {
    const char *data;                /* NULL: absent */
    int         dtype, place, bytes; /* bytes of an element */
    int         staged;              /* its index within a stage, in units of 16 bytes per thread; -1: it isn't prefetched */
} ChainInput;

/* A chain as the kernel runs it. A step's operand is CHAIN_NONE, input k, CHAIN_RESULT + slot, or CHAIN_LATEST for the result of the
 * previous step. */
enum { CHAIN_LATEST = CHAIN_RESULT + CHAIN_MAX_STEPS };
typedef struct ChainRun {
    ChainInput  in[CHAIN_MAX_IN];
    char       *out[CHAIN_MAX_OUT];
    ChainStep   steps[CHAIN_MAX_STEPS];
    signed char slot[CHAIN_MAX_STEPS]; /* slot in shared memory for the step's result; -1: it isn't kept */
    Broadcast   plan;
    int         count, num_in, slots, stage; /* stage: size of a stage, in units of 16 bytes per thread */
    uint32_t    cols, packs_a_row;
    int64_t     items;
} ChainRun;

/* ---- elements ---- */

template <int N> struct Values {
    float v[N];
};

/* Loads N values of `dtype` from p, which must be 16-byte aligned if N is PACK. */
template <int N> static __device__ __forceinline__ Values<N> load_values(const char *p, int dtype)
{
    Values<N> x;
    if constexpr (N == PACK) {
        if (dtype == DT_F32)
            load_n<N>((const float *)p, x.v);
        else if (dtype == DT_BF16)
            load_n<N>((const __nv_bfloat16 *)p, x.v);
        else
            load_n<N>((const __half *)p, x.v);
    } else {
        x.v[0] = any_get(p, dtype, 0);
    }
    return x;
}

template <int N> static __device__ __forceinline__ void store_values(char *p, int dtype, const Values<N> &x)
{
    if constexpr (N == PACK) {
        if (dtype == DT_F32)
            store_n<N>((float *)p, x.v);
        else if (dtype == DT_BF16)
            store_n<N>((__nv_bfloat16 *)p, x.v);
        else
            store_n<N>((__half *)p, x.v);
    } else {
        any_set(p, dtype, 0, x.v[0]);
    }
}

template <int N> static __device__ __forceinline__ void round_values(Values<N> &x, int dtype)
{
    if (dtype == DT_BF16) {
#pragma unroll
        for (int i = 0; i < N; i++) x.v[i] = to_float(from_float<__nv_bfloat16>(x.v[i]));
    } else if (dtype == DT_F16) {
#pragma unroll
        for (int i = 0; i < N; i++) x.v[i] = to_float(from_float<__half>(x.v[i]));
    }
}

/* Offset in input k, in elements, of row `row`; column c is added by the caller. */
static __device__ __forceinline__ int64_t input_offset(const ChainRun &run, int k, uint32_t row)
{
    if (run.in[k].place == PLACE_SAME) return (int64_t)row * run.cols;
    if (run.in[k].place == PLACE_ROW) return 0;
    int64_t offset = 0;
    for (int d = run.plan.ndim - 2; d >= 0; d--) {
        uint32_t dim = (uint32_t)run.plan.dim[d];
        offset += row % dim * run.plan.step[k][d];
        row /= dim;
    }
    return offset;
}

template <int N> static __device__ Values<N> load_input(const ChainRun &run, int k, uint32_t row, uint32_t c)
{
    const ChainInput &in = run.in[k];
    int64_t           at = input_offset(run, k, row);
    if (run.plan.step[k][run.plan.ndim - 1]) return load_values<N>(in.data + (at + c) * in.bytes, in.dtype);
    Values<N> x;
    float     one = any_get(in.data, in.dtype, at);
#pragma unroll
    for (int i = 0; i < N; i++) x.v[i] = one;
    return x;
}

/* ---- a thread's column of shared memory, by 16 bytes ---- */

static __device__ __forceinline__ uint4 *column(int place)
{
    extern __shared__ uint4 shared[];
    return shared + place * THREADS + threadIdx.x;
}

static __device__ __forceinline__ Values<PACK> load_staged(const ChainRun &run, int k, int stage)
{
    int   place = run.slots * 2 + stage * run.stage + run.in[k].staged;
    uint4 words[2] = {*column(place)};
    if (run.in[k].bytes == 4) words[1] = *column(place + 1);
    return load_values<PACK>((const char *)words, run.in[k].dtype);
}

template <int N> static __device__ __forceinline__ void keep(int slot, const Values<N> &x)
{
    if constexpr (N == PACK) {
        *column(2 * slot) = to_pack<float>(x.v).words;
        *column(2 * slot + 1) = to_pack<float>(x.v + 4).words;
    } else {
        *(float *)column(2 * slot) = x.v[0];
    }
}

template <int N> static __device__ __forceinline__ Values<N> kept(int slot)
{
    Values<N> x;
    if constexpr (N == PACK) {
        load_pack((const float *)column(2 * slot), x.v);
        load_pack((const float *)column(2 * slot + 1), x.v + 4);
    } else {
        x.v[0] = *(const float *)column(2 * slot);
    }
    return x;
}

/* Starts the copies of all prefetched inputs of an item to a stage. */
static __device__ __forceinline__ void copy_ahead(const ChainRun &run, int64_t item, int stage)
{
    for (int k = 0; k < run.num_in; k++) {
        const ChainInput &in = run.in[k];
        if (in.staged < 0 || item >= run.items) continue;
        const char *from = in.data + item * (PACK * in.bytes);
        int         place = run.slots * 2 + stage * run.stage + in.staged;
        copy_async(column(place), from, true);
        if (in.bytes == 4) copy_async(column(place + 1), from + 16, true);
    }
    copy_commit();
}

/* ---- steps ---- */

template <int N, typename F> static __device__ __forceinline__ void apply_two(Values<N> &y, const Values<N> &a, const Values<N> &b, F f)
{
#pragma unroll
    for (int i = 0; i < N; i++) y.v[i] = f(a.v[i], b.v[i]);
}

template <int N, typename F>
static __device__ __forceinline__ void apply_three(Values<N> &y, const Values<N> &a, const Values<N> &b, const Values<N> &c, F f)
{
#pragma unroll
    for (int i = 0; i < N; i++) y.v[i] = f(a.v[i], b.v[i], c.v[i]);
}

#define TWO(code, ...) \
    case CHAIN_##code: \
        apply_two<N>(y, a, b, __VA_ARGS__); \
        break;
#define THREE(code, ...) \
    case CHAIN_##code: \
        apply_three<N>(y, a, b, c, __VA_ARGS__); \
        break;

template <int N>
static __device__ __forceinline__ void apply_step(const ChainStep &step, Values<N> &y, const Values<N> &a, const Values<N> &b,
                                                  const Values<N> &c)
{
    float number = step.number;
    bool  flag = number != 0;
    switch (step.code) {
        THREE(ADD, Add())
        THREE(SUB, Sub())
        THREE(MUL, Mul())
        THREE(DIV, Div())
        THREE(MINIMUM, Minimum())
        THREE(MAXIMUM, Maximum())
        THREE(MAXIMUM_BWD, MaximumBwd{flag})
        THREE(GE, Ge())
        THREE(GT, Gt())
        THREE(EQ, Eq())
        THREE(WHERE, Where())
        TWO(EXP, Exp())
        TWO(LOG, Log())
        TWO(SQRT, Sqrt())
        TWO(TANH, Tanh())
        TWO(SIGMOID, Sigmoid())
        TWO(SIGMOID_BWD, SigmoidBwd())
        TWO(SILU, Silu())
        TWO(SILU_BWD, SiluBwd())
        TWO(LOG_SIGMOID, LogSigmoid())
        TWO(LOG_SIGMOID_BWD, LogSigmoidBwd())
        TWO(SCALE, Scale{number})
        TWO(SOFTCAP, Softcap{number})
        TWO(SOFTCAP_BWD, SoftcapBwd{number})
    case CHAIN_GELU:
        if (flag)
            apply_two<N>(y, a, b, Gelu<true>());
        else
            apply_two<N>(y, a, b, Gelu<false>());
        break;
    case CHAIN_GELU_BWD:
        if (flag)
            apply_two<N>(y, a, b, GeluBwd<true>());
        else
            apply_two<N>(y, a, b, GeluBwd<false>());
        break;
        TWO(RELU, Relu{flag})
        TWO(RELU_BWD, ReluBwd{flag})
    default: /* cast: round_values does the rounding */
        y = a;
    }
}

template <int N>
static __device__ __forceinline__ Values<N> operand(const ChainRun &run, int at, const Values<N> &latest, int stage, uint32_t row,
                                                    uint32_t c)
{
    if (at == CHAIN_LATEST) return latest;
    if (at >= CHAIN_RESULT) return kept<N>(at - CHAIN_RESULT);
    if (at < 0) return Values<N>{};
    if constexpr (N == PACK) {
        if (run.in[at].staged >= 0) return load_staged(run, at, stage);
    }
    return load_input<N>(run, at, row, c);
}

template <int N> static __device__ __forceinline__ void run_steps(const ChainRun &run, int64_t item, int stage)
{
    int64_t   at = item * N;
    uint32_t  row = 0, c = (uint32_t)at;
    Values<N> y;
    if (run.plan.ndim > 1) {
        row = (uint32_t)item / run.packs_a_row;
        c = ((uint32_t)item - row * run.packs_a_row) * N;
    }
#pragma unroll
    for (int i = 0; i < N; i++) y.v[i] = 0;
#pragma unroll 1
    for (int i = 0; i < run.count; i++) {
        const ChainStep &step = run.steps[i];
        Values<N>        x[CHAIN_OPERANDS];
#pragma unroll
        for (int k = 0; k < CHAIN_OPERANDS; k++) x[k] = operand<N>(run, step.operand[k], y, stage, row, c);
        apply_step<N>(step, y, x[0], x[1], x[2]);
        round_values<N>(y, step.dtype);
        if (run.slot[i] >= 0) keep<N>(run.slot[i], y);
        if (step.out >= 0 && run.out[step.out]) store_values<N>(run.out[step.out] + at * (step.dtype == DT_F32 ? 4 : 2), step.dtype, y);
    }
}

template <int N> static __global__ void __launch_bounds__(THREADS) chain_items(const __grid_constant__ ChainRun run, int64_t first)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t item = first + (int64_t)blockIdx.x * THREADS + threadIdx.x; item < run.items; item += step) run_steps<N>(run, item, 0);
}

static __global__ void __launch_bounds__(THREADS) chain_staged(const __grid_constant__ ChainRun run)
{
    int64_t step = (int64_t)gridDim.x * THREADS, first = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int     stage = 0;
    for (int s = 0; s < STAGES - 1; s++) copy_ahead(run, first + s * step, s);
    for (int64_t item = first; item < run.items; item += step) {
        copy_ahead(run, item + (STAGES - 1) * step, stage ? stage - 1 : STAGES - 1);
        copy_wait<STAGES - 1>();
        asm volatile("" ::: "memory"); /* keeps the compiler from reading the copied data earlier */
        run_steps<PACK>(run, item, stage);
        stage = stage + 1 < STAGES ? stage + 1 : 0;
    }
}

/* ---- launching ---- */

/* Assigns slots to results that are read later than by the next step. A slot is reused after its last reader. */
static void find_slots(ChainRun *run)
{
    int last[CHAIN_MAX_STEPS] = {}, free_from[CHAIN_MAX_STEPS] = {};
    for (int i = 0; i < run->count; i++)
        for (int k = 0; k < CHAIN_OPERANDS; k++) {
            int from = run->steps[i].operand[k] - CHAIN_RESULT;
            if (from >= 0) last[from] = from + 1 < i ? i : last[from];
        }
    for (int i = 0; i < run->count; i++) {
        int slot = 0;
        run->slot[i] = -1;
        if (!last[i]) continue;
        while (free_from[slot] > i) slot++;
        free_from[slot] = last[i] + 1;
        run->slot[i] = (signed char)slot;
        if (slot >= run->slots) run->slots = slot + 1;
    }
    for (int i = run->count - 1; i >= 0; i--)
        for (int k = 0; k < CHAIN_OPERANDS; k++) {
            int from = run->steps[i].operand[k] - CHAIN_RESULT;
            if (from >= 0) run->steps[i].operand[k] = from == i - 1 ? CHAIN_LATEST : CHAIN_RESULT + run->slot[from];
        }
}

static int place_of(const Broadcast *plan, int k)
{
    int64_t dense = plan->dim[plan->ndim - 1];
    bool    same = plan->step[k][plan->ndim - 1] == 1, none = true;
    for (int d = plan->ndim - 2; d >= 0; d--) {
        same = same && plan->step[k][d] == dense;
        none = none && plan->step[k][d] == 0;
        dense *= plan->dim[d];
    }
    return same ? PLACE_SAME : none ? PLACE_ROW : PLACE_MIXED;
}

/* Fills in the operands. Returns whether all are 16-byte aligned, so that packs of 8 elements can be loaded and stored. */
static bool find_operands(const KernelArgs *args, ChainRun *run)
{
    bool packs = true;
    for (int k = 0; k < args->num_in; k++) {
        const TensorView *view = &args->in[k];
        ChainInput       *in = &run->in[k];
        in->staged = -1;
        in->data = (const char *)view->data;
        if (!view->data) continue;
        in->dtype = view->type.dtype;
        in->bytes = view->type.dtype == DT_F32 ? 4 : 2;
        in->place = place_of(&run->plan, k);
        run->num_in = k + 1;
        packs = packs && is_aligned16(view->data);
        if (in->place != PLACE_SAME) continue;
        in->staged = run->stage;
        run->stage += in->bytes / 2;
    }
    for (int k = 0; k < args->num_out && k < CHAIN_MAX_OUT; k++) {
        run->out[k] = (char *)args->out[k].data;
        packs = packs && is_aligned16(run->out[k]);
    }
    return packs;
}

enum { MOST_BLOCKS = 2048 };

static unsigned grid_of(int64_t items)
{
    int64_t blocks = cuda_div_up(items, THREADS);
    return (unsigned)(blocks < (int64_t)MOST_BLOCKS ? blocks : (int64_t)MOST_BLOCKS);
}

/* Computes elements from `done` on, N at a time, without prefetching. */
template <int N> static Status launch_items(const KernelArgs *args, ChainRun run, int64_t numel, int64_t done)
{
    size_t shared = (size_t)run.slots * 2 * 16 * THREADS;
    for (int k = 0; k < CHAIN_MAX_IN; k++) run.in[k].staged = -1;
    run.items = numel / N;
    run.packs_a_row = run.cols / N;
    if (shared > SHARED_MOST) CUDA_TRY(cudaFuncSetAttribute(chain_items<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    chain_items<N><<<grid_of(run.items - done / N), THREADS, shared, cuda_stream(args)>>>(run, done / N);
    return CUDA_LAUNCHED();
}

/* Computes all whole packs, with prefetching if there is enough shared memory. */
static Status launch_packs(const KernelArgs *args, ChainRun run, int64_t numel)
{
    size_t shared = 16 * THREADS * (size_t)(run.slots * 2 + run.stage * STAGES);
    if (!run.stage || shared > SHARED_MOST) return launch_items<PACK>(args, run, numel, 0);
    run.items = numel / PACK;
    run.packs_a_row = run.cols / PACK;
    chain_staged<<<grid_of(run.items), THREADS, shared, cuda_stream(args)>>>(run);
    return CUDA_LAUNCHED();
}

static Status chain_run(const KernelArgs *args)
{
    const ChainAttrs *attrs = (const ChainAttrs *)args->attrs;
    ChainRun          run = {};
    const TensorType *y = chain_result(args);
    int64_t           numel = type_numel(y);
    run.plan = broadcast_plan_of(args, y);
    run.count = chain_count(attrs);
    for (int i = 0; i < run.count; i++) run.steps[i] = chain_step(attrs, i);
    find_slots(&run);
    bool    packs = find_operands(args, &run), flat = run.plan.ndim == 1;
    int64_t cols = run.plan.dim[run.plan.ndim - 1], done = 0;
    run.cols = flat ? 0 : (uint32_t)cols;
    if (packs && (flat || cols % PACK == 0)) done = numel / PACK * PACK;
    if (done) TRY(launch_packs(args, run, numel));
    return done < numel ? launch_items<1>(args, run, numel, done) : OK;
}

/* The kernel counts items in 32 bits. */
static bool chain_fits(const Node *node, CudaDevice *device)
{
    (void)device;
    int k = 0;
    while (!node->out[k]) k++;
    return type_numel(&node->out[k]->type) < (int64_t)1 << 32;
}

CUDA_KERNELS(chain, {.dtypes = DT_SET_DECODE, .run = chain_run, .name = "steps", .match = chain_fits})
