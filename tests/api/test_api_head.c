/* Choosing ids from hidden states with a bare matrix, using only the public header. */
#include "surogate.h"

#include "test.h"

enum { VOCAB = 50, DIM = 12, ROWS = 3 };

static float matrix[VOCAB * DIM], hidden[ROWS * DIM];

static sg_head_options options_of(sg_strategy strategy)
{
    return (sg_head_options){.vocab = VOCAB,
                             .dim = DIM,
                             .max_rows = ROWS,
                             .device = "cpu",
                             .threads = 1,
                             .strategy = strategy,
                             .temperature = 1,
                             .top_k = 5,
                             .top_p = 0.9,
                             .seed = 4};
}

static sg_head_decoder *open_decoder(sg_strategy strategy)
{
    sg_head_options  options = options_of(strategy);
    sg_matrix        of = {.data = matrix};
    sg_head_decoder *decoder = NULL;
    EXPECT_INT(sg_head_decoder_open(&options, &of, &decoder), SG_OK);
    return decoder;
}

static int32_t likeliest(int row)
{
    int32_t best = 0;
    float   most = -INFINITY;
    for (int v = 0; v < VOCAB; v++) {
        float sum = 0;
        for (int i = 0; i < DIM; i++) sum += matrix[v * DIM + i] * hidden[row * DIM + i];
        if (sum > most) most = sum, best = v;
    }
    return best;
}

static void a_decoder_chooses_the_likeliest(void)
{
    sg_head_decoder *decoder = open_decoder(SG_GREEDY);
    sg_head_info     info;
    int32_t          ids[ROWS];
    EXPECT_INT(sg_head_decoder_decode_later(decoder, hidden, SG_F32, false, ROWS), SG_OK);
    EXPECT_INT(sg_head_decoder_get_info(decoder, &info), SG_OK);
    EXPECT_INT(info.waiting, ROWS);
    EXPECT_INT(info.batches, 1);
    EXPECT_STR(info.device, "cpu");
    EXPECT(!info.stream);
    EXPECT(info.device_bytes > (int64_t)sizeof matrix);
    EXPECT_INT(sg_head_decoder_result(decoder, ids, ROWS), SG_OK);
    for (int b = 0; b < ROWS; b++) EXPECT_INT(ids[b], likeliest(b));
    sg_head_decoder_close(decoder);
}

static void the_same_seed_draws_the_same(void)
{
    for (int strategy = SG_TEMPERATURE; strategy <= SG_TOP_P; strategy++) {
        sg_head_decoder *one = open_decoder((sg_strategy)strategy), *other = open_decoder((sg_strategy)strategy);
        for (int i = 0; i < 5; i++) {
            int32_t ids[ROWS], same[ROWS];
            EXPECT_INT(sg_head_decoder_decode_later(one, hidden, SG_F32, false, ROWS), SG_OK);
            EXPECT_INT(sg_head_decoder_decode_later(other, hidden, SG_F32, true, ROWS), SG_OK);
            EXPECT_INT(sg_head_decoder_result(one, ids, ROWS), SG_OK);
            EXPECT_INT(sg_head_decoder_result(other, same, ROWS), SG_OK);
            EXPECT(memcmp(ids, same, sizeof ids) == 0);
        }
        sg_head_decoder_close(one);
        sg_head_decoder_close(other);
    }
}

static void what_cannot_be_is_said(void)
{
    sg_head_options  options = options_of(SG_GREEDY);
    sg_matrix        of = {.data = matrix};
    sg_head_decoder *decoder = NULL;
    sg_head_info     info;
    int32_t          ids[ROWS];
    EXPECT_INT(sg_head_decoder_open(NULL, &of, &decoder), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "options");
    EXPECT_INT(sg_head_decoder_open(&options, NULL, &decoder), SG_INVALID);
    EXPECT_INT(sg_head_decoder_open(&options, &of, NULL), SG_INVALID);
    of.dtype = (sg_dtype)7;
    EXPECT_INT(sg_head_decoder_open(&options, &of, &decoder), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "matrix: dtype 7; expected 0 to 3");
    of.dtype = SG_F32;
    options.threads = -1;
    EXPECT_INT(sg_head_decoder_open(&options, &of, &decoder), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "threads -1");
    options = options_of((sg_strategy)11);
    EXPECT_INT(sg_head_decoder_open(&options, &of, &decoder), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "strategy 11");
    decoder = open_decoder(SG_GREEDY);
    EXPECT_INT(sg_head_decoder_decode_later(NULL, hidden, SG_F32, false, 1), SG_INVALID);
    EXPECT_INT(sg_head_decoder_decode_later(decoder, hidden, SG_I8, false, 1), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "hidden: dtype i8");
    EXPECT_INT(sg_head_decoder_decode_later(decoder, hidden, SG_F32, false, ROWS + 1), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "a batch of 4 rows; this decoder takes 1 to 3");
    EXPECT_INT(sg_head_decoder_result(decoder, ids, ROWS), SG_INVALID);
    EXPECT_CONTAINS(sg_message(), "no batch is in flight");
    EXPECT_INT(sg_head_decoder_result(decoder, NULL, ROWS), SG_INVALID);
    EXPECT_INT(sg_head_decoder_get_info(NULL, &info), SG_INVALID);
    EXPECT_INT(sg_head_decoder_get_info(decoder, NULL), SG_INVALID);
    sg_head_decoder_close(decoder);
    sg_head_decoder_close(NULL);
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {TEST(a_decoder_chooses_the_likeliest), TEST(the_same_seed_draws_the_same),
                                     TEST(what_cannot_be_is_said)};
    for (int i = 0; i < VOCAB * DIM; i++) matrix[i] = sinf((float)(i * i % 1009));
    for (int i = 0; i < ROWS * DIM; i++) hidden[i] = cosf((float)(3 * i * i % 211));
    return test_run(cases, (int)(sizeof cases / sizeof cases[0]), argc, argv);
}
