/* The BPE trainer: the merges that Hugging Face's trainer (tokenizers 0.23) learns from the same text, the written files, and the same
 * result with any number of threads. For large texts: tests/oracle/tokenizer_train.py. */
#include "test.h"

#include "base/json.h"
#include "files/file.h"
#include "text/bpe_train.h"
#include "text/tokenizer.h"

#include <unistd.h>

static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
static const char        corpus[] = "low low low lower lowest newer newer wider aaaa aaaaa abab ababab 12 \xC3\xA9\xC3\xA9 e\xCC\x81";

static BpeTrainOptions options_of(int vocab_size, int64_t min_frequency)
{
    return (BpeTrainOptions){.vocab_size = vocab_size,
                             .min_frequency = min_frequency,
                             .special_tokens = special,
                             .num_special_tokens = 3,
                             .eos_token = "<|im_end|>",
                             .pad_token = "<|endoftext|>"};
}

/* Learns from the texts; returns the tokenizer.json. */
static void trained(BpeTrainOptions options, const Str *texts, int64_t count, StrBuf *out)
{
    BpeTrainer *trainer;
    EXPECT_OK(bpe_trainer_create(&options, &trainer));
    if (!trainer) return;
    EXPECT_OK(bpe_trainer_add(trainer, texts, count));
    EXPECT_OK(bpe_trainer_train(trainer));
    bpe_trainer_write(trainer, out);
    bpe_trainer_destroy(trainer);
}

static void merges_are_the_peers(void)
{
    static const char *const want[] = {"a a",
                                       "a b",
                                       "l o",
                                       "lo w",
                                       "e r",
                                       "\xC4\xA0 low",
                                       "\xC3\x83 \xC2\xA9",
                                       "ab ab",
                                       "e w",
                                       "n ew",
                                       "\xC4\xA0 aa",
                                       "\xC4\xA0 \xC3\x83\xC2\xA9",
                                       "\xC4\xA0 abab",
                                       "\xC4\xA0 new",
                                       ("\xC4\xA0"
                                        "aa aa"),
                                       "\xC4\xA0new er"};
    StrBuf                   json = {0}, merge = {0};
    Arena                    arena = {0};
    JsonValue                root = {0};
    trained(options_of(290, 2), &(Str){corpus, sizeof corpus - 1}, 1, &json);
    EXPECT_OK(json_parse(&arena, "trained", json.data, json.len, &root));
    const JsonValue *model = json_get(&root, "model"), *merges = json_get(model, "merges");
    EXPECT(merges && merges->count == sizeof want / sizeof want[0]);
    for (uint32_t i = 0; merges && i < merges->count && i < sizeof want / sizeof want[0]; i++) {
        strbuf_clear(&merge);
        strbuf_printf(&merge, "%s %s", merges->items[i].items[0].string.data, merges->items[i].items[1].string.data);
        EXPECT_STR(merge.data, want[i]);
    }
    EXPECT_INT(json_get(model, "vocab") ? json_get(model, "vocab")->count : 0, 3 + 256 + 16);
    strbuf_deinit(&merge);
    strbuf_deinit(&json);
    arena_deinit(&arena);
}

static void files_load_and_encode(void)
{
    Arena           arena = {0};
    const char     *dir = arena_printf(&arena, "/tmp/test_tokenizer_train_%d", (int)getpid());
    BpeTrainOptions options = options_of(290, 2);
    BpeTrainer     *trainer;
    Tokenizer      *tokenizer = NULL;
    TokenIds        ids = {0};
    EXPECT_OK(bpe_trainer_create(&options, &trainer));
    EXPECT_OK(bpe_trainer_add(trainer, &(Str){corpus, sizeof corpus - 1}, 1));
    EXPECT_OK(bpe_trainer_train(trainer));
    EXPECT_INT(bpe_trainer_num_merges(trainer), 16);
    EXPECT_OK(bpe_trainer_save(trainer, dir));
    bpe_trainer_destroy(trainer);
    EXPECT_OK(tokenizer_load(dir, &tokenizer));
    if (tokenizer) {
        static const int32_t want[] = {262, 71, 85, 86, 274, 223, 2};
        TokenizerScratch    *scratch = tokenizer_scratch_create(tokenizer);
        EXPECT_OK(tokenizer_encode(tokenizer, scratch, "lowest newer <|im_end|>", 23, (EncodeOptions){0}, &ids));
        EXPECT(ids.len == 7 && memcmp(ids.data, want, sizeof want) == 0);
        EXPECT_INT(tokenizer_eos_id(tokenizer), 2);
        EXPECT_INT(tokenizer_pad_id(tokenizer), 0);
        EXPECT_INT(tokenizer_bos_id(tokenizer), -1);
        tokenizer_scratch_destroy(scratch);
    }
    EXPECT_OK(file_remove_tree(dir));
    token_ids_deinit(&ids);
    tokenizer_destroy(tokenizer);
    arena_deinit(&arena);
}

/* One thread or three, one long text or its lines, a known expression or one for PCRE2: the files are equal except for the pattern. */
static void threads_and_cuts_do_not_show(void)
{
    StrBuf      long_text = {0}, one = {0}, three = {0}, lines = {0};
    ThreadPool *pool;
    for (int i = 0; i < 60000; i++) strbuf_printf(&long_text, "word%d is%s\n", i * 7919 % 1000, i % 3 ? " here\xFF" : "\n  there");
    Str whole = {long_text.data, long_text.len};
    trained(options_of(600, 0), &whole, 1, &one);
    EXPECT_OK(pool_create(3, &pool));
    BpeTrainOptions options = options_of(600, 0);
    options.pool = pool;
    trained(options, &whole, 1, &three);
    EXPECT_STR(strbuf_cstr(&three), strbuf_cstr(&one));
    options.pattern = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+|()";
    trained(options, &whole, 1, &lines);
    const char *model = strstr(strbuf_cstr(&one), "\"model\""), *same = strstr(strbuf_cstr(&lines), "\"model\"");
    EXPECT(model && same);
    if (model && same) EXPECT_STR(same, model);
    pool_destroy(pool);
    strbuf_deinit(&long_text);
    strbuf_deinit(&one);
    strbuf_deinit(&three);
    strbuf_deinit(&lines);
}

static void wrong_options_are_errors(void)
{
    BpeTrainer     *trainer;
    BpeTrainOptions options = options_of(258, 1);
    EXPECT_FAILS(bpe_trainer_create(&options, &trainer), ERR_INVALID, "vocab_size 258");
    options = options_of(300, 1);
    options.pattern = "[a&&b]";
    EXPECT_FAILS(bpe_trainer_create(&options, &trainer), ERR_UNSUPPORTED, "&&");
    options = options_of(300, 1);
    options.special_tokens = (const char *const[]){"a", "b", "c"};
    EXPECT_OK(bpe_trainer_create(&options, &trainer));
    EXPECT_FAILS(bpe_trainer_train(trainer), ERR_INVALID, "special token \"a\"");
    bpe_trainer_destroy(trainer);
    options = options_of(300, 1);
    options.pattern = "(a|aa)+[bc]";
    StrBuf wild = {0};
    for (int i = 0; i < 5000; i++) strbuf_putc(&wild, 'a');
    EXPECT_OK(bpe_trainer_create(&options, &trainer));
    EXPECT_FAILS(bpe_trainer_add(trainer, &(Str){wild.data, wild.len}, 1), ERR_INVALID, "expression");
    bpe_trainer_destroy(trainer);
    strbuf_deinit(&wild);
}

TEST_MAIN(TEST(merges_are_the_peers), TEST(files_load_and_encode), TEST(threads_and_cuts_do_not_show), TEST(wrong_options_are_errors))
