/* sample on CUDA, in four launches; a warp reads a group of tokens.
 * - `scan` finds the first token (in the order of sample.h) of each group, and computes the scores if they differ from the logits. A row
 * with top-k 1 and no log-probabilities needs no more.
 * - `weigh` sums the mass of the logits if log-probabilities are wanted. With top-k it lists the likeliest tokens: those not below the k-th
 * largest of the groups' largest scores, which are at least k tokens and rarely many more. Without top-k it sums the mass of each group, or
 * counts the tokens in each bucket.
 * - `split`, for top-p or min-p without top-k, sums the mass before the border by groups, and lists the tokens that may be the border.
 * - `choose`, a thread block per row, sorts the list and chooses from it if it is sufficient. If it isn't, several passes over the row
 * narrow it down to the tokens that fit into the list.
 * Masses are integers, so atomic additions in any order give the same bits. Groups below all listed tokens are skipped unless something
 * else needs them. */
#include "ops/sample/sample_choose.cuh"
#include "ops/sample/sample_scan.cuh"
#include "ops/sample/sample_split.cuh"

static Sampling sampling_of(const KernelArgs *args)
{
    const SampleAttrs *attrs = (const SampleAttrs *)args->attrs;
    const TensorView  *in = args->in, *out = args->out;
    Sampling           s = {};
    s.logits = in[SAMPLE_IN_LOGITS].data;
    s.rows = (int)in[SAMPLE_IN_LOGITS].type.dim[0];
    s.cols = in[SAMPLE_IN_LOGITS].type.dim[1];
    s.vocab = (int)(attrs->vocab ? attrs->vocab : s.cols);
    s.stride = sample_stride(s.vocab);
    s.group = (int)sample_group(s.vocab);
    s.groups = (int)cuda_div_up(s.vocab, s.group);
    s.best = (int)attrs->best;
    s.controls = (const float *)in[SAMPLE_IN_CONTROLS].data;
    s.keys = (const uint32_t *)in[SAMPLE_IN_KEYS].data;
    s.slots = (const int32_t *)in[SAMPLE_IN_SLOTS].data;
    s.slots_count = type_numel(&in[SAMPLE_IN_NEXT].type);
    s.bias_ids = (const int32_t *)in[SAMPLE_IN_BIAS_IDS].data;
    s.bias = (const float *)in[SAMPLE_IN_BIAS].data;
    s.guides = (const uint32_t *)in[SAMPLE_IN_GUIDES].data;
    s.guide_words = sample_guide_words(s.cols);
    s.num_bias = s.bias ? (int)in[SAMPLE_IN_BIAS].type.dim[1] : 0;
    s.ids = (int32_t *)out[SAMPLE_OUT_IDS].data;
    s.logprobs = (float *)out[SAMPLE_OUT_LOGPROBS].data;
    s.best_ids = (int32_t *)out[SAMPLE_OUT_BEST_IDS].data;
    s.best_logprobs = (float *)out[SAMPLE_OUT_BEST_LOGPROBS].data;
    s.next = (int32_t *)out[SAMPLE_OUT_NEXT].data;
    s.seen = (uint32_t *)out[SAMPLE_OUT_SEEN].data;
    enum { KNOWN = 1u << SAMPLE_IN_CONTROLS | 1u << SAMPLE_IN_SLOTS, KNOWN_BIAS = 1u << SAMPLE_IN_BIAS_IDS | 1u << SAMPLE_IN_BIAS };
    s.known = (args->constant & KNOWN) == KNOWN && (!s.bias || (args->constant & KNOWN_BIAS) == KNOWN_BIAS);
    return s;
}

/* Lays out the workspace; arrays that are read 16 bytes at a time come first. There are scores only if an input may change them. */
static void place(Sampling *s, void *workspace)
{
    int64_t rows = s->rows, groups = rows * s->groups;
    s->state = (SampleState *)workspace;
    s->list = (uint64_t *)(s->state + rows);
    s->logit_list = s->list + rows * SAMPLE_LIST;
    s->buckets = (uint32_t *)(s->logit_list + rows * SAMPLE_LIST);
    s->scores = (float *)(s->buckets + rows * SAMPLE_BUCKETS);
    s->mass = (uint64_t *)(s->scores + (s->seen || s->bias || s->guides ? rows * s->stride : 0));
    s->firsts = s->mass + groups;
    s->logit_keys = (uint32_t *)(s->firsts + groups);
    s->low_keys = s->logit_keys + groups;
}

template <typename X, bool VEC> static Status launch(const Sampling &s, bool early, cudaStream_t stream)
{
    enum { WARPS = 32 }; /* of each multiprocessor at once; other grids give the same results */
    int device, processors;
    CUDA_TRY(cudaGetDevice(&device));
    CUDA_TRY(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
    int64_t turns = cuda_div_up((int64_t)s.groups * s.rows, processors * WARPS), blocks = cuda_div_up(s.groups, SCAN_WARPS * turns);
    dim3    grid((unsigned)blocks, (unsigned)s.rows);
    size_t  maps = s.num_bias ? SCAN_WARPS * SAMPLE_STEP * sizeof(int32_t) : 0;
    TRY(cuda_launch_early(early, sample_scan<X, VEC>, grid, SCAN_WARPS * 32, maps, stream, s));
    TRY(cuda_launch_early(early, sample_weigh<X, VEC>, grid, SCAN_WARPS * 32, 0, stream, s));
    TRY(cuda_launch_early(early, sample_split<X, VEC>, grid, SCAN_WARPS * 32, 0, stream, s));
    return cuda_launch_early(early, sample_choose<X, VEC>, dim3((unsigned)s.rows), CHOOSE_THREADS, 0, stream, s);
}

static Status sample_run(const KernelArgs *args)
{
    Sampling     s = sampling_of(args);
    cudaStream_t stream = cuda_stream(args);
    place(&s, args->workspace);
    CUDA_FLOAT(args->in[SAMPLE_IN_LOGITS].type.dtype, X, {
        if (s.cols % Pack<X>::N == 0 && is_aligned16(s.logits)) return launch<X, true>(s, args->early, stream);
        return launch<X, false>(s, args->early, stream);
    });
    return OK;
}

CUDA_KERNELS(sample, {.dtypes = DT_SET_FLOAT, .run = sample_run, .name = "groups", .workspace = cuda_planned_workspace})
