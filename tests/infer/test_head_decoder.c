/* Choosing ids with a bare matrix: the ids equal a plain choice from plain logits, for every strategy and format; rows are independent;
 * unsupported settings are refused with a reason. */
#include "infer/head_decoder.h"

#include "ops/ops.h"
#include "ops/sample/sample.h"
#include "test.h"

enum { VOCAB = 211, DIM = 37, ROWS = 21, SEED = 77 };

static float   matrix[VOCAB * DIM], hidden[ROWS * DIM], bias[VOCAB];
static Device *device;

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
                                .seed = SEED};
}

static HeadDecoder *open_decoder(const HeadDecoderOptions *options)
{
    HeadDecoder *decoder = NULL;
    EXPECT_OK(head_decoder_create(options, device, &decoder));
    return decoder;
}

static void decode(HeadDecoder *decoder, const float *rows, int64_t count, int32_t *ids)
{
    EXPECT_OK(head_decoder_queue(decoder, rows, DT_F32, false, count));
    EXPECT_OK(head_decoder_result(decoder, ids, count));
}

/* ---- the plain choice ---- */

static void plain_logits(const float *of_matrix, const float *row, float *out)
{
    for (int v = 0; v < VOCAB; v++) {
        double sum = 0;
        for (int i = 0; i < DIM; i++) sum += (double)row[i] * (double)of_matrix[v * DIM + i];
        out[v] = (float)sum + bias[v];
    }
}

static int by_order(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The plain choice: among the kept tokens, in order of ids, the first at which the running sum of their mass exceeds the drawn number. */
static int32_t plain_choice(const HeadDecoderOptions *o, const float *logits, int64_t run, int row)
{
    uint64_t order[VOCAB], all = 0, mass = 0, kept[VOCAB] = {0};
    float    scale = 1 / (float)o->temperature;
    int      count = o->strategy == HEAD_BY_TOP_K ? (int)o->top_k : o->strategy == HEAD_GREEDY ? 1 : VOCAB, n = 0;
    for (int v = 0; v < VOCAB; v++) order[v] = sample_order(logits[v], v);
    qsort(order, VOCAB, sizeof *order, by_order);
    float most = sample_order_score(order[0]);
    for (int i = 0; i < count; i++) all += sample_weight(sample_order_score(order[i]), most, scale);
    double wanted = o->strategy == HEAD_BY_TOP_P ? o->top_p * (double)all : (double)all;
    for (; n < count && (n == 0 || (double)mass < wanted); n++) {
        uint64_t weight = sample_weight(sample_order_score(order[n]), most, scale);
        kept[sample_order_id(order[n])] = weight;
        mass += weight;
    }
    uint32_t keys[SAMPLE_KEYS] = {[SAMPLE_SEED_LOW] = SEED, [SAMPLE_NUMBER] = (uint32_t)row, [SAMPLE_POSITION] = (uint32_t)run};
    uint64_t drawn = sample_draw(keys, mass);
    for (int v = 0; v < VOCAB; v++) {
        if (drawn < kept[v]) return v;
        drawn -= kept[v];
    }
    return -1;
}

static void ids_are_those_of_a_plain_choice(void)
{
    for (int strategy = HEAD_GREEDY; strategy <= HEAD_BY_TOP_P; strategy++) {
        HeadDecoderOptions options = options_of((HeadStrategy)strategy);
        HeadDecoder       *decoder = open_decoder(&options);
        int                distinct = 0;
        for (int64_t run = 0; run < 12; run++) {
            int32_t ids[ROWS];
            float   logits[VOCAB];
            int64_t rows = 1 + run * 5 % ROWS;
            decode(decoder, hidden, rows, ids);
            for (int b = 0; b < rows; b++) {
                plain_logits(matrix, hidden + b * DIM, logits);
                EXPECT_INT(ids[b], plain_choice(&options, logits, run, b));
                distinct += b > 0 && ids[b] != ids[b - 1];
            }
        }
        EXPECT(distinct > 20);
        head_decoder_destroy(decoder);
    }
}

/* ---- formats ---- */

static void codes_of(DType dtype, bool by_columns, void *codes, float *back)
{
    static float turned[VOCAB * DIM];
    dtype_encode(dtype, matrix, VOCAB * DIM, codes);
    dtype_decode(dtype, codes, VOCAB * DIM, back);
    for (int v = 0; v < VOCAB; v++)
        for (int i = 0; i < DIM; i++) turned[i * VOCAB + v] = back[v * DIM + i];
    if (by_columns) dtype_encode(dtype, turned, VOCAB * DIM, codes);
}

/* Hidden states that the format holds exactly, so that nothing is rounded. */
static void rounded_hidden(DType dtype, float *out)
{
    uint16_t codes[ROWS * DIM];
    dtype_encode(dtype, hidden, ROWS * DIM, codes);
    dtype_decode(dtype, codes, ROWS * DIM, out);
}

static void matrices_of_each_format_and_order_have_their_ids(void)
{
    static const DType dtypes[] = {DT_F32, DT_BF16, DT_F16};
    for (int k = 0; k < 6; k++) {
        static float       codes[VOCAB * DIM], back[VOCAB * DIM];
        float              rows[ROWS * DIM], logits[VOCAB];
        int32_t            ids[ROWS];
        HeadDecoderOptions options = options_of(HEAD_GREEDY);
        DType              dtype = dtypes[k / 2];
        codes_of(dtype, k % 2, codes, back);
        memcpy(rows, hidden, sizeof rows);
        if (dtype != DT_F32) rounded_hidden(dtype, rows);
        options.dtype = dtype;
        options.matrix = (HeadMatrix){.data = codes, .dtype = dtype, .by_columns = k % 2};
        HeadDecoder *decoder = open_decoder(&options);
        decode(decoder, rows, ROWS, ids);
        for (int b = 0; b < ROWS; b++) {
            plain_logits(back, rows + b * DIM, logits);
            EXPECT_INT(ids[b], plain_choice(&options, logits, 0, b));
        }
        head_decoder_destroy(decoder);
    }
}

static void eight_bits_have_scales_given_or_made(void)
{
    static int8_t      codes[VOCAB * DIM];
    static float       scales[VOCAB], back[VOCAB * DIM], logits[VOCAB];
    int32_t            made[ROWS], given[ROWS];
    HeadDecoderOptions options = options_of(HEAD_GREEDY);
    for (int v = 0; v < VOCAB; v++) {
        float most = 0;
        for (int i = 0; i < DIM; i++) most = fmaxf(most, fabsf(matrix[v * DIM + i]));
        scales[v] = most / 127;
        for (int i = 0; i < DIM; i++) codes[v * DIM + i] = (int8_t)rintf(matrix[v * DIM + i] / scales[v]);
        for (int i = 0; i < DIM; i++) back[v * DIM + i] = scales[v] * codes[v * DIM + i];
    }
    options.dtype = DT_I8;
    HeadDecoder *decoder = open_decoder(&options);
    decode(decoder, hidden, ROWS, made);
    head_decoder_destroy(decoder);
    options.matrix = (HeadMatrix){.data = codes, .dtype = DT_I8, .scale = scales};
    decoder = open_decoder(&options);
    decode(decoder, hidden, ROWS, given);
    head_decoder_destroy(decoder);
    for (int b = 0; b < ROWS; b++) {
        plain_logits(back, hidden + b * DIM, logits);
        EXPECT_INT(made[b], plain_choice(&options, logits, 0, b));
        EXPECT_INT(given[b], made[b]);
    }
}

static void hidden_states_come_in_their_format(void)
{
    static const DType dtypes[] = {DT_BF16, DT_F16};
    HeadDecoderOptions options = options_of(HEAD_BY_TEMPERATURE);
    for (int k = 0; k < 2; k++) {
        uint16_t codes[ROWS * DIM];
        float    rows[ROWS * DIM];
        int32_t  ids[ROWS], same[ROWS];
        rounded_hidden(dtypes[k], rows);
        dtype_encode(dtypes[k], rows, ROWS * DIM, codes);
        HeadDecoder *decoder = open_decoder(&options), *other = open_decoder(&options);
        EXPECT_OK(head_decoder_queue(decoder, codes, dtypes[k], true, ROWS)); /* both devices read memory of the host */
        EXPECT_OK(head_decoder_result(decoder, ids, ROWS));
        decode(other, rows, ROWS, same);
        EXPECT(memcmp(ids, same, sizeof ids) == 0);
        head_decoder_destroy(decoder);
        head_decoder_destroy(other);
    }
}

/* ---- batches ---- */

static void rows_dont_influence_one_another(void)
{
    HeadDecoderOptions options = options_of(HEAD_BY_TOP_P);
    HeadDecoder       *decoder = open_decoder(&options), *other = open_decoder(&options);
    float              rows[ROWS * DIM];
    int32_t            ids[ROWS], same[ROWS];
    memcpy(rows, hidden, sizeof rows);
    for (int i = 0; i < ROWS * DIM; i++)
        if (i / DIM != 4) rows[i] = -rows[i];
    decode(decoder, hidden, ROWS, ids);
    decode(other, rows, 5, same);
    EXPECT_INT(same[4], ids[4]);
    rows[0] = NAN;
    EXPECT_OK(head_decoder_queue(other, rows, DT_F32, false, 5));
    EXPECT_FAILS(head_decoder_result(other, same, 5), ERR_INVALID, "row 0 has no id");
    EXPECT_OK(head_decoder_queue(decoder, hidden, DT_F32, false, 5));
    EXPECT_OK(head_decoder_result(decoder, ids, 5));
    EXPECT(same[0] < 0);
    EXPECT_INT(same[4], ids[4]);
    head_decoder_destroy(decoder);
    head_decoder_destroy(other);
}

static void two_batches_are_in_flight(void)
{
    HeadDecoderOptions options = options_of(HEAD_BY_TOP_K);
    HeadDecoder       *decoder = open_decoder(&options), *other = open_decoder(&options);
    int32_t            ids[ROWS], one[ROWS], want[20][ROWS];
    for (int i = 0; i < 20; i++) decode(other, hidden + i % 3 * DIM, 1 + i % 4, want[i]);
    EXPECT_FAILS(head_decoder_result(decoder, ids, 1), ERR_INVALID, "no batch is in flight");
    for (int i = 0; i < 20; i++) {
        EXPECT_OK(head_decoder_queue(decoder, hidden + i % 3 * DIM, DT_F32, false, 1 + i % 4));
        if (i == 1) EXPECT_FAILS(head_decoder_queue(decoder, hidden, DT_F32, false, 1), ERR_INVALID, "2 batches are in flight");
        if (i == 1) EXPECT_FAILS(head_decoder_result(decoder, one, 2), ERR_INVALID, "ids of 2 rows; the oldest batch has 1");
        if (!i) continue;
        EXPECT_INT(head_decoder_waiting(decoder), 1 + (i - 1) % 4);
        EXPECT_OK(head_decoder_result(decoder, ids, 1 + (i - 1) % 4));
        EXPECT(memcmp(ids, want[i - 1], sizeof *ids * (size_t)(1 + (i - 1) % 4)) == 0);
    }
    head_decoder_destroy(decoder);
    head_decoder_destroy(other);
}

/* ---- what can't be ---- */

static void refused(HeadDecoderOptions options, const char *message)
{
    HeadDecoder *decoder = NULL;
    EXPECT_FAILS(head_decoder_create(&options, device, &decoder), ERR_INVALID, message);
}

static void options_that_cannot_be_are_said(void)
{
    HeadDecoderOptions o = options_of(HEAD_BY_TOP_P);
#define REFUSED(field, value, message) \
    do { \
        HeadDecoderOptions changed = o; \
        changed.field = value; \
        refused(changed, message); \
    } while (0)
    REFUSED(vocab, 0, "vocab 0; expected 1 to");
    REFUSED(dim, -1, "dim -1; expected 1 to");
    REFUSED(rows, 0, "batches of 0 rows; expected 1 to 4096");
    REFUSED(rows, 4097, "batches of 4097 rows");
    REFUSED(dtype, DT_I32, "what the matrix is kept in: dtype i32; expected f32, bf16, f16 or i8");
    REFUSED(matrix.data, NULL, "the matrix is NULL");
    REFUSED(matrix.dtype, DT_I8, "a matrix of i8 without scales");
    REFUSED(matrix.scale, bias, "a matrix of f32 with scales");
    REFUSED(temperature, 0, "temperature 0; expected a number above 0");
    REFUSED(temperature, NAN, "temperature nan");
    REFUSED(top_p, 1.5, "top_p 1.5; expected above 0, at most 1");
    o.strategy = HEAD_BY_TOP_K;
    REFUSED(top_k, 0, "top_k 0; expected at least 1");
    REFUSED(strategy, (HeadStrategy)9, "strategy 9; expected 0 to 3");
    matrix[3 * DIM + 2] = 1e6f;
    REFUSED(dtype, DT_F16, "the matrix: row 3, column 2 is 1e+06; expected what f16 holds");
    matrix[3 * DIM + 2] = 0;
}

static void batches_that_cannot_be_are_said(void)
{
    HeadDecoderOptions options = options_of(HEAD_GREEDY);
    HeadDecoder       *decoder = open_decoder(&options);
    EXPECT_FAILS(head_decoder_queue(decoder, hidden, DT_F32, false, 0), ERR_INVALID, "a batch of 0 rows; this decoder takes 1 to 21");
    EXPECT_FAILS(head_decoder_queue(decoder, hidden, DT_F32, false, 22), ERR_INVALID, "a batch of 22 rows; this decoder takes 1 to 21");
    EXPECT_FAILS(head_decoder_queue(decoder, hidden, DT_I8, false, 1), ERR_INVALID, "hidden: dtype i8; expected f32, bf16 or f16");
    EXPECT_FAILS(head_decoder_queue(decoder, NULL, DT_F32, false, 1), ERR_INVALID, "hidden is NULL");
    head_decoder_destroy(decoder);
}

static void what_is_planned_is_allocated(void)
{
    HeadDecoderOptions options = options_of(HEAD_GREEDY);
    HeadDecoder       *decoder = open_decoder(&options);
    const Session     *session = head_decoder_session(decoder);
    EXPECT_INT(session_allocated_bytes(session), plan_total_bytes(session_plan(session)));
    EXPECT(plan_find(session_plan(session), HEAD_WEIGHT)->place.region == REGION_WEIGHTS);
    head_decoder_destroy(decoder);
}

static Status open_device(void)
{
#ifdef FAMILY_CUDA
    return device_open("cuda", 0, 0, &device);
#else
    return device_cpu_create(2, &device);
#endif
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(ids_are_those_of_a_plain_choice),      TEST(matrices_of_each_format_and_order_have_their_ids),
                                     TEST(eight_bits_have_scales_given_or_made), TEST(hidden_states_come_in_their_format),
                                     TEST(rows_dont_influence_one_another),      TEST(two_batches_are_in_flight),
                                     TEST(options_that_cannot_be_are_said),      TEST(batches_that_cannot_be_are_said),
                                     TEST(what_is_planned_is_allocated)};
    fill(matrix, VOCAB * DIM, 1, 0.5f);
    fill(hidden, ROWS * DIM, 2, 1);
    fill(bias, VOCAB, 3, 0.5f);
    if (open_device() != OK) {
        fprintf(stderr, "skipped: %s\n", status_message());
        printf("0 passed, 0 failed, %d skipped\n", (int)(sizeof cases / sizeof cases[0]));
        return 0;
    }
    int failed = test_run(cases, (int)(sizeof cases / sizeof cases[0]), argc, argv);
    device->api->destroy(device);
    return failed;
}
