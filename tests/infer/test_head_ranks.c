/* A matrix divided among several devices gives the same ids as on one: on CPUs or, compiled with FAMILY_CUDA, on two GPUs. */
#include "infer/head_ranks.h"

#include "base/philox.h"
#include "test.h"

#ifdef FAMILY_CUDA
#define KIND "cuda"
static const char *const devices[] = {"cuda:0,1"};
#else
#define KIND "cpu"
static const char *const devices[] = {"cpu:0,1", "cpu:0,1,2", "cpu:4,2,1,0,3"};
#endif
enum { VOCAB = 211, DIM = 64, ROWS = 21, RUNS = 6, NUM_DEVICES = sizeof devices / sizeof *devices };

static float matrix[VOCAB * DIM], turned[VOCAB * DIM], hidden[ROWS * DIM], bias[VOCAB];

static void fill(float *out, int count, uint64_t key, float spread)
{
    for (int i = 0; i < count; i++) out[i] = spread * ((float)philox4x32((uint32_t)i, 0, 0, 0, key).v[0] / 2147483648.0f - 1);
}

static HeadDecoderOptions options_of(HeadStrategy strategy)
{
    return (HeadDecoderOptions){.vocab = VOCAB,
                                .dim = DIM,
                                .rows = ROWS,
                                .matrix = {.data = matrix},
                                .bias = bias,
                                .strategy = strategy,
                                .temperature = 0.8,
                                .top_k = 7,
                                .top_p = 0.6,
                                .seed = 77};
}

static bool are_enough_devices(void)
{
    HeadRanks         *ranks;
    HeadDecoderOptions options = options_of(HEAD_GREEDY);
    if (head_ranks_open(&options, devices[0], 0, 1, &ranks) != OK) return false;
    head_ranks_close(ranks);
    return true;
}

/* Decodes with two batches always in flight. */
static void decode(const HeadDecoderOptions *options, const char *device, int32_t ids[RUNS][ROWS])
{
    HeadRanks *ranks = NULL;
    EXPECT_OK(head_ranks_open(options, device, 0, 1, &ranks));
    for (int run = 0; run <= RUNS; run++) {
        if (run < RUNS) EXPECT_OK(head_ranks_queue(ranks, hidden, DT_F32, false, 1 + run * 4));
        if (run > 0) EXPECT_OK(head_ranks_result(ranks, ids[run - 1], 1 + (run - 1) * 4));
    }
    head_ranks_close(ranks);
}

static void compare(const HeadDecoderOptions *options)
{
    int32_t alone[RUNS][ROWS] = {{0}}, together[RUNS][ROWS] = {{0}};
    decode(options, KIND, alone);
    EXPECT(alone[RUNS - 1][0] != alone[RUNS - 1][1] || alone[RUNS - 1][1] != alone[RUNS - 1][2]);
    for (int k = 0; k < NUM_DEVICES; k++) {
        decode(options, devices[k], together);
        EXPECT(memcmp(alone, together, sizeof alone) == 0);
    }
}

static void ids_are_those_of_one_device(void)
{
    if (!are_enough_devices()) SKIP(status_message());
    for (int strategy = HEAD_GREEDY; strategy <= HEAD_BY_TOP_P; strategy++) {
        HeadDecoderOptions options = options_of((HeadStrategy)strategy);
        compare(&options);
    }
}

static void formats_and_orders_are_those_of_one_device(void)
{
    static const DType dtypes[] = {DT_F32, DT_BF16, DT_F16, DT_I8};
    if (!are_enough_devices()) SKIP(status_message());
    for (size_t k = 0; k < 2 * sizeof dtypes / sizeof *dtypes; k++) {
        HeadDecoderOptions options = options_of(HEAD_GREEDY);
        options.dtype = dtypes[k / 2];
        options.matrix = (HeadMatrix){.data = k % 2 ? turned : matrix, .by_columns = k % 2};
        compare(&options);
    }
}

#ifndef FAMILY_CUDA
/* Arrays that the device reads itself: on a CPU, any host memory. */
static void arrays_of_the_first_device_are_read_by_all(void)
{
    HeadDecoderOptions options = options_of(HEAD_GREEDY);
    int32_t            alone[RUNS][ROWS] = {{0}}, ids[ROWS];
    HeadRanks         *ranks = NULL;
    decode(&options, KIND, alone);
    options.matrix.on_device = true;
    EXPECT_OK(head_ranks_open(&options, devices[1], 0, 1, &ranks));
    EXPECT_OK(head_ranks_queue(ranks, hidden, DT_F32, true, ROWS));
    EXPECT_OK(head_ranks_result(ranks, ids, ROWS));
    EXPECT(memcmp(ids, alone[RUNS - 1], sizeof ids) == 0);
    head_ranks_close(ranks);
}
#endif

/* With more devices than groups of eight rows, some devices have no rows. */
static void a_device_may_have_no_rows(void)
{
    if (!are_enough_devices()) SKIP(status_message());
    HeadDecoderOptions options = options_of(HEAD_BY_TOP_K);
    options.vocab = 11;
    compare(&options);
}

static void what_cannot_be_is_said(void)
{
    HeadDecoderOptions options = options_of(HEAD_GREEDY);
    HeadRanks         *ranks = NULL;
    EXPECT_FAILS(head_ranks_open(&options, "cpu:", 0, 1, &ranks), ERR_INVALID, "device \"cpu:\"; expected a kind and its numbers");
    EXPECT_FAILS(head_ranks_open(&options, "cpu:0,", 0, 1, &ranks), ERR_INVALID, "ends with a comma");
    EXPECT_FAILS(head_ranks_open(&options, "cpu:0,x", 0, 1, &ranks), ERR_INVALID, "expected a kind and its numbers");
    EXPECT_FAILS(head_ranks_open(&options, "cpu:0,1,0", 0, 1, &ranks), ERR_INVALID, "names cpu 0 twice");
    EXPECT_FAILS(head_ranks_open(&options, "auto:0", 0, 1, &ranks), ERR_INVALID, "numbers belong to cpu or cuda");
    EXPECT_FAILS(head_ranks_open(&options, "gpu:0,1", 0, 1, &ranks), ERR_INVALID, "device \"gpu\"; expected auto, cpu or cuda");
    EXPECT_FAILS(head_ranks_open(&options, "cpu:0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", 0, 1, &ranks), ERR_INVALID,
                 "names more than 16");
    options.top_p = 2, options.strategy = HEAD_BY_TOP_P;
    EXPECT_FAILS(head_ranks_open(&options, "cpu:0,1", 0, 1, &ranks), ERR_INVALID, "top_p 2; expected above 0, at most 1");
    options = options_of(HEAD_GREEDY);
    EXPECT_OK(head_ranks_open(&options, "cpu:0,1", 0, 1, &ranks));
    EXPECT_FAILS(head_ranks_queue(ranks, hidden, DT_F32, false, ROWS + 1), ERR_INVALID, "a batch of 22 rows; this decoder takes 1 to 21");
    int32_t id;
    EXPECT_OK(head_ranks_queue(ranks, hidden, DT_F32, false, 1));
    EXPECT_OK(head_ranks_result(ranks, &id, 1));
    head_ranks_close(ranks);
}

static void begin(void)
{
    fill(matrix, VOCAB * DIM, 1, 0.5f);
    fill(hidden, ROWS * DIM, 2, 1);
    fill(bias, VOCAB, 3, 0.5f);
    for (int v = 0; v < VOCAB; v++)
        for (int i = 0; i < DIM; i++) turned[i * VOCAB + v] = matrix[v * DIM + i];
}

TEST_MAIN(TEST(begin), TEST(ids_are_those_of_one_device), TEST(formats_and_orders_are_those_of_one_device), TEST(a_device_may_have_no_rows),
#ifndef FAMILY_CUDA
          TEST(arrays_of_the_first_device_are_read_by_all),
#endif
          TEST(what_cannot_be_is_said))
