/* Texts with several adapters decoded together: each has the same bits as decoded alone with its adapter. */
#include "infer/infer_model.h"
#include "infer/row_adapters.h"

#include "texts.h"

#define FIXTURES "tests/fixtures/"

enum { ADAPTERS = 2 };

typedef struct Model {
    const char *family, *format; /* format: value of --qlora */
    DType       dtype;
} Model;

/* The adapter of prompt i; prompts that begin alike have different adapters. */
static int adapter_of(int i)
{
    return i / 3 % (ADAPTERS + 1);
}

static const char *dir_of(const char *family, int adapter)
{
    static char dirs[ADAPTERS][128];
    if (!adapter) return NULL;
    snprintf(dirs[adapter - 1], sizeof *dirs, adapter == 1 ? FIXTURES "families/%s/adapter" : FIXTURES "row_adapters/%s", family);
    return dirs[adapter - 1];
}

static void open_model(const Model *model, const char *adapter, InferModel *infer)
{
    char dir[128];
    snprintf(dir, sizeof dir, FIXTURES "families/%s", model->family);
    EXPECT_OK(infer_open(infer, dir, adapter, TEXTS_DEVICE, 2));
    EXPECT_OK(infer_use_format(infer, model->format));
    infer->options.model_dtype = infer->options.master_dtype = model->dtype;
}

static void use_both(InferModel *infer, const char *family)
{
    EXPECT_OK(infer_use_adapters(infer, (AdapterName[]){{"a", dir_of(family, 1)}, {"b", dir_of(family, 2)}}, ADAPTERS));
}

/* Decodes the requests of this adapter; -1: all requests, each with its own adapter. */
static int64_t decode(InferModel *infer, const DecoderOptions *options, int adapter, Text *texts)
{
    Decoder *decoder;
    EXPECT_OK(infer_start_decoding(infer, options));
    EXPECT_OK(decoder_create(infer->session, &decoder));
    for (int i = 0; i < REQUESTS; i++) {
        if (adapter >= 0 && adapter_of(i) != adapter) continue;
        DecodeRequest request = make_request(&texts[i], i, infer->model->vocab_size);
        if (adapter < 0) request.adapter = adapter_of(i);
        EXPECT_OK(decoder_submit(decoder, &request, NULL));
    }
    run_all(decoder);
    int64_t preempted = decoder_num_preempted(decoder);
    decoder_destroy(decoder);
    return preempted;
}

static void a_row_has_the_bits_of_its_adapter_alone(void)
{
    NEED_DEVICE();
    static const Model models[] = {
        {"qwen3", NULL, DT_F32}, {"qwen3", NULL, DT_BF16}, {"gpt2", NULL, DT_F32}, {"gpt2", NULL, DT_BF16}, {"qwen3", "nf4", DT_BF16}};
    static const DecoderOptions options[] = {{.rows = 1, .context = CONTEXT, .prompt = 100, .penalties = true},
                                             {.rows = 5, .context = CONTEXT, .prompt = 9, .penalties = true},
                                             {.rows = 64, .context = CONTEXT, .prompt = 33, .pages = 9, .penalties = true}};
    Text                       *alone = calloc(REQUESTS, sizeof *alone), *beside = calloc(REQUESTS, sizeof *beside);
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        InferModel infer;
        for (int a = 0; a <= ADAPTERS; a++) {
            open_model(&models[m], dir_of(models[m].family, a), &infer);
            decode(&infer, &options[1], a, alone);
            infer_close(&infer);
        }
        open_model(&models[m], NULL, &infer);
        use_both(&infer, models[m].family);
        for (size_t k = 0; k < sizeof options / sizeof *options; k++) {
            EXPECT((decode(&infer, &options[k], -1, beside) > 0) == (options[k].pages > 0));
            expect_same(alone, beside, models[m].family);
        }
        infer_close(&infer);
    }
    free(alone), free(beside);
}

/* A text of 20 tokens with adapter 1. */
static void decode_one(InferModel *infer, Text *text)
{
    Decoder *decoder;
    EXPECT_OK(infer_start_decoding(infer, &(DecoderOptions){.rows = 2, .context = 64}));
    EXPECT_OK(decoder_create(infer->session, &decoder));
    DecodeRequest request = make_request(text, 4, infer->model->vocab_size); /* greedy */
    text->prompt_len = request.prompt_len = 10;
    request.max_tokens = 20;
    request.adapter = 1;
    EXPECT_OK(decoder_submit(decoder, &request, NULL));
    request.adapter = infer->num_row_adapters + 1;
    EXPECT_FAILS(decoder_submit(decoder, &request, NULL), ERR_INVALID, "the session has");
    run_all(decoder);
    decoder_destroy(decoder);
}

/* Other adapters of the same shapes are read into the existing session; for other shapes, or none, a new session is made. */
static void adapters_are_read_again(void)
{
    NEED_DEVICE();
    static char folder[] = "/tmp/row_adapters_XXXXXX";
    InferModel  infer;
    Text        first, again, second;
    Arena       arena = {0};
    Str         bytes;
    const Model model = {"qwen3", NULL, DT_F32};
    EXPECT(mkdtemp(folder));
    const char *weights = arena_printf(&arena, "%s/adapter_model.safetensors", folder);
    test_copy(FIXTURES "families/qwen3/adapter/adapter_config.json", arena_printf(&arena, "%s/adapter_config.json", folder));
    test_copy(FIXTURES "families/qwen3/adapter/adapter_model.safetensors", weights);
    open_model(&model, NULL, &infer);
    EXPECT_OK(infer_use_adapters(&infer, &(AdapterName){"a", folder}, 1));
    decode_one(&infer, &first);
    EXPECT_OK(file_read(&arena, weights, 1 << 20, &bytes));
    char *changed = arena_alloc(&arena, bytes.len);
    memcpy(changed, bytes.data, bytes.len);
    memset(changed + bytes.len - 256, 0x3f, 256);
    EXPECT_OK(file_write_atomic(weights, changed, bytes.len));
    EXPECT_OK(infer_use_adapters(&infer, &(AdapterName){"other name", folder}, 1));
    EXPECT(infer.session != NULL);
    decode_one(&infer, &again);
    EXPECT(memcmp(first.logprobs, again.logprobs, 20 * sizeof *first.logprobs) != 0);
    EXPECT_OK(infer_use_adapters(&infer, &(AdapterName){"a", FIXTURES "row_adapters/qwen3"}, 1));
    EXPECT(!infer.session);
    decode_one(&infer, &second);
    EXPECT(memcmp(again.logprobs, second.logprobs, 20 * sizeof *first.logprobs) != 0);
    EXPECT_OK(infer_use_adapters(&infer, NULL, 0));
    EXPECT(!infer.session && infer.num_row_adapters == 0);
    infer_close(&infer);
    EXPECT_OK(file_remove_tree(folder));
    arena_deinit(&arena);
}

static void what_cant_be_chosen_is_refused(void)
{
    NEED_DEVICE();
    const Model model = {"qwen3", NULL, DT_F32};
    InferModel  infer;
    int         index;
    open_model(&model, NULL, &infer);
    use_both(&infer, "qwen3");
    EXPECT_OK(infer_find_adapter(&infer, str_of("b"), &index));
    EXPECT_INT(index, 1);
    EXPECT_FAILS(infer_find_adapter(&infer, str_of("c"), &index), ERR_INVALID, "there is no adapter c; expected one of a, b");
    EXPECT_FAILS(infer_use_adapters(&infer, (AdapterName[]){{"a", dir_of("qwen3", 1)}, {"a", dir_of("qwen3", 2)}}, 2), ERR_INVALID,
                 "two adapters are called a: ");
    EXPECT_FAILS(infer_use_adapters(&infer, &(AdapterName){"", "x"}, 1), ERR_INVALID, "adapter 0: expected a name and a folder");
    EXPECT_FAILS(infer_use_adapters(&infer, &(AdapterName){"x", "/nowhere"}, 1), ERR_NOT_FOUND,
                 "adapter x: /nowhere: there is no such folder");
    EXPECT_FAILS(infer_use_adapters(&infer, &(AdapterName){"x", dir_of("gpt2", 1)}, 1), ERR_INVALID, "adapter x: ");
    EXPECT_INT(infer.num_row_adapters, 2); /* the earlier adapters are kept */
    infer_close(&infer);
    open_model(&model, dir_of("qwen3", 1), &infer);
    EXPECT_FAILS(infer_use_adapters(&infer, &(AdapterName){"b", dir_of("qwen3", 2)}, 1), ERR_INVALID,
                 "the model was opened with the adapter " FIXTURES "families/qwen3/adapter");
    infer_close(&infer);
}

TEST_MAIN(TEST(what_cant_be_chosen_is_refused), TEST(adapters_are_read_again), TEST(a_row_has_the_bits_of_its_adapter_alone))
