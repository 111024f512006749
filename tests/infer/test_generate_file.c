/* A file of prompts, the file of their samples, and the text that tokens become. */
#include "infer/answer.h"
#include "infer/generate_file.h"
#include "infer/resumable_file.h"

#include "test.h"

/* A tokenizer of the letters a to j and one special token. */
static const char letters_json[] =
    "{\"added_tokens\": [{\"id\": 10, \"content\": \"<|end|>\", \"special\": true, \"normalized\": false}], \"decoder\": {\"type\": \"Fuse\"}, "
    "\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"d\": 3, "
    "\"e\": 4, \"f\": 5, \"g\": 6, \"h\": 7, \"i\": 8, \"j\": 9}}}";

enum { POSITIONS = 8 };

static HfModel model = {.max_positions = POSITIONS, .vocab_size = 11};

static void open_letters(InferModel *infer)
{
    *infer = (InferModel){.model = &model, .tokenizer_dir = "/nowhere"};
    EXPECT_OK(tokenizer_parse("letters", letters_json, strlen(letters_json), &infer->tokenizer));
    infer->scratch = tokenizer_scratch_create(infer->tokenizer);
}

static void close_letters(InferModel *infer)
{
    tokenizer_scratch_destroy(infer->scratch);
    tokenizer_destroy(infer->tokenizer);
    arena_deinit(&infer->arena);
}

/* ---- prompts ---- */

static Status read_prompts(InferModel *infer, const char *text, bool skip_bad, PromptFile *out)
{
    PromptOptions options = {.skip_bad = skip_bad};
    return prompt_file_read(infer, "p.jsonl", str_of(text), &options, out);
}

static void a_row_is_a_prompt(void)
{
    InferModel infer;
    PromptFile file;
    open_letters(&infer);
    EXPECT_OK(read_prompts(&infer,
                           "{\"prompt\": \"abc\", \"id\": {\"n\": [1, 2]}}\n\n \r\n{\"prompt\": \"j\", \"other\": 1, \"max_tokens\": 5}\n"
                           "{\"ids\": [3, 10]}",
                           false, &file));
    EXPECT_INT(file.num_rows, 3);
    EXPECT_INT(file.rows[0].index, 0);
    EXPECT_INT(file.rows[0].num, 3);
    EXPECT_STR(file.rows[0].id, "{\"n\": [1, 2]}");
    EXPECT_INT(file.rows[1].index, 3);
    EXPECT_INT(file.ids.data[file.rows[1].first], 9);
    EXPECT(!file.rows[1].id && !file.rows[1].error);
    EXPECT(file.rows[2].num == 2 && file.ids.data[file.rows[2].first] == 3 && file.ids.data[file.rows[2].first + 1] == 10);
    EXPECT_INT(file.longest, 3);
    EXPECT_INT(file.rows[0].max_tokens, 0);
    EXPECT_INT(file.rows[1].max_tokens, 5);
    prompt_file_deinit(&file);
    close_letters(&infer);
}

static void bad_rows_are_named_by_line(void)
{
    static const struct {
        const char *row, *says;
    } cases[] = {
        {"{\"promt\": \"a\"}", "p.jsonl:2: the row has none of prompt, messages and ids"},
        {"[]", "p.jsonl:2: the row has none"},
        {"{\"prompt\": \"a\", \"messages\": []}", "p.jsonl:2: the row has more than one"},
        {"{\"prompt\": \"a\", \"ids\": [1]}", "p.jsonl:2: the row has more than one of prompt, messages and ids"},
        {"{\"ids\": 1}", "p.jsonl:2: ids is integer; expected a list of token ids"},
        {"{\"ids\": []}", "p.jsonl:2: ids is an empty list"},
        {"{\"ids\": [1, 11]}", "p.jsonl:2: ids[1] is no token id; expected a whole number from 0 to 10"},
        {"{\"ids\": [1, 2.5]}", "p.jsonl:2: ids[1] is no token id"},
        {"{\"ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}", "p.jsonl:2: the prompt has 9 tokens"},
        {"{\"prompt\": 1}", "p.jsonl:2: prompt is integer; expected a text"},
        {"{\"prompt\": \"\"}", "p.jsonl:2: the prompt is empty"},
        {"{\"prompt\": \"abcdefghi\"}", "p.jsonl:2: the prompt has 9 tokens, the model was made for 8"},
        {"{\"messages\": {}}", "p.jsonl:2: messages is object; expected a list"},
        {"{\"messages\": []}", "p.jsonl:2: messages is an empty list"},
        {"{\"messages\": [{\"content\": \"a\"}]}", "p.jsonl:2: messages[0] has no role"},
        {"{\"messages\": [1]}", "p.jsonl:2: messages[0] has no role"},
        {"{\"messages\": [{\"role\": \"user\"}], \"tools\": 3}", "p.jsonl:2: tools is integer"},
        {"{\"prompt\": \"a\", \"max_tokens\": 0}", "p.jsonl:2: max_tokens is no number of tokens; expected a whole number from 1 on"},
        {"{\"prompt\": \"a\", \"max_tokens\": 2.5}", "p.jsonl:2: max_tokens is no number of tokens"},
        {"{\"prompt\": \"a\", \"max_tokens\": \"7\"}", "p.jsonl:2: max_tokens is no number of tokens"},
        {"{\"prompt\": \"a\"", "p.jsonl:2:"},
    };
    InferModel infer;
    open_letters(&infer);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        PromptFile file;
        char       text[256];
        snprintf(text, sizeof text, "{\"prompt\": \"a\"}\n%s\n{\"prompt\": \"b\"}\n", cases[i].row);
        EXPECT_FAILS(read_prompts(&infer, text, false, &file), ERR_INVALID, cases[i].says);
        prompt_file_deinit(&file);
        EXPECT_OK(read_prompts(&infer, text, true, &file));
        EXPECT_INT(file.num_rows, 3);
        EXPECT_CONTAINS(file.rows[1].error, cases[i].says);
        EXPECT_INT(file.rows[2].first, 1); /* a bad row leaves no tokens */
        prompt_file_deinit(&file);
    }
    close_letters(&infer);
}

static void a_file_without_rows_or_a_template_is_refused(void)
{
    InferModel infer;
    PromptFile file;
    open_letters(&infer);
    EXPECT_FAILS(read_prompts(&infer, "\n \n", true, &file), ERR_INVALID, "p.jsonl has no rows");
    prompt_file_deinit(&file);
    EXPECT_FAILS(read_prompts(&infer, "{}\n", true, &file), ERR_INVALID, "p.jsonl has no row that is fine; the first says: p.jsonl:1: ");
    prompt_file_deinit(&file);
    EXPECT_FAILS(read_prompts(&infer, "{\"prompt\": \"a\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n", true, &file),
                 ERR_NOT_FOUND, "/nowhere has no chat template"); /* an error of the model, not of the row */
    prompt_file_deinit(&file);
    close_letters(&infer);
}

static void the_hash_is_of_what_the_model_is_fed(void)
{
    static const char *const texts[] = {"{\"prompt\": \"abc\", \"id\": 1}\n{\"prompt\": \"d\"}",
                                        "{\"prompt\": \"abc\", \"id\": 2}\n{\"prompt\": \"d\"}",
                                        "{\"prompt\": \"ab\", \"id\": 1}\n{\"prompt\": \"cd\"}",
                                        "{\"prompt\": \"abc\", \"id\": 1}\n\n{\"prompt\": \"d\"}",
                                        "{\"prompt\": \"abc\", \"id\": 1, \"max_tokens\": 4}\n{\"prompt\": \"d\"}",
                                        "{\"id\": 1, \"max_tokens\": null, \"prompt\": \"abc\"}\r\n{\"prompt\": \"d\", \"more\": 0}\n"};
    uint64_t                 hashes[6];
    InferModel               infer;
    open_letters(&infer);
    for (int i = 0; i < 6; i++) {
        PromptFile file;
        EXPECT_OK(read_prompts(&infer, texts[i], false, &file));
        hashes[i] = file.hash;
        for (int k = 0; k < i && i < 5; k++) EXPECT(hashes[k] != hashes[i]);
        prompt_file_deinit(&file);
    }
    EXPECT(hashes[5] == hashes[0]);
    close_letters(&infer);
}

/* ---- texts ---- */

static bool push(Answer *answer, int32_t id)
{
    static const int32_t best[] = {3, 7};
    static const float   numbers[] = {-0.5f, -INFINITY};
    return answer_push(answer, &(DecodeToken){id, -1.25f, -1, best, numbers});
}

static void stop_texts_end_an_answer_and_are_left_out(void)
{
    const char *items[] = {"cd", "<|end|>"};
    StrList     stops = {items, 2};
    Answer      answer;
    InferModel  infer;
    open_letters(&infer);
    answer_init(&answer, infer.tokenizer, &stops, -1, NULL, 0);
    EXPECT(push(&answer, 0) && push(&answer, 2));
    EXPECT_INT(answer.settled, 1); /* the c may begin a stop text, so it isn't settled */
    EXPECT(push(&answer, 2));
    EXPECT_INT(answer.settled, 2);
    EXPECT(!push(&answer, 3));
    answer_end(&answer);
    EXPECT(str_equal((Str){answer.text.data, answer.text.len}, "ac"));
    EXPECT_INT(answer.ids.len, 4);
    EXPECT_STR(answer_reason(&answer, DECODE_BY_CALLER), "stop");
    answer_deinit(&answer);
    answer_init(&answer, infer.tokenizer, &stops, -1, NULL, 0);
    EXPECT(push(&answer, 2) && !push(&answer, 10));
    answer_end(&answer);
    EXPECT_INT(answer.text.len, 1);
    answer_deinit(&answer);
    answer_init(&answer, infer.tokenizer, &stops, -1, NULL, 0);
    EXPECT(push(&answer, 2));
    answer_end(&answer);
    EXPECT_INT(answer.settled, 1);
    EXPECT_STR(answer_reason(&answer, DECODE_AT_STOP), "eos");
    EXPECT_STR(answer_reason(&answer, DECODE_AT_LENGTH), "length");
    EXPECT_STR(answer_reason(&answer, DECODE_AT_CONTEXT), "context");
    EXPECT_STR(answer_reason(&answer, DECODE_BY_CALLER), "stopped");
    answer_deinit(&answer);
    close_letters(&infer);
}

#define TOPS "\"logprob\":-1.25,\"top\":[{\"id\":3,\"logprob\":-0.5},{\"id\":7,\"logprob\":null}]}"
#define WITH_TOPS "[{\"id\":0," TOPS ",{\"id\":1," TOPS "]"

static void log_probabilities_are_json(void)
{
    static const char *const want[] = {"[]", "[{\"id\":0,\"logprob\":-1.25},{\"id\":1,\"logprob\":-1.25}]", WITH_TOPS};
    static const int         tops[] = {-1, 0, 2};
    StrList                  stops = {0};
    InferModel               infer;
    open_letters(&infer);
    for (int i = 0; i < 3; i++) {
        Answer answer;
        StrBuf out = {0};
        answer_init(&answer, infer.tokenizer, &stops, tops[i], NULL, 0);
        EXPECT(push(&answer, 0) && push(&answer, 1));
        answer_write_logprobs(&answer, &out);
        EXPECT_STR(strbuf_cstr(&out), want[i]);
        strbuf_deinit(&out);
        answer_deinit(&answer);
    }
    close_letters(&infer);
}

/* ---- the file ---- */

static char  dir[64];
static Arena arena;

static const char *path_of(const char *name)
{
    return arena_printf(&arena, "%s/%s", dir, name);
}

static void begin_folder(void)
{
    snprintf(dir, sizeof dir, "/tmp/generate_file_XXXXXX");
    EXPECT(mkdtemp(dir));
}

static void end_folder(void)
{
    EXPECT_OK(file_remove_tree(dir));
    arena_deinit(&arena);
}

static Status open_with(const char *settings, ResumableFile *out)
{
    return resumable_file_open(&arena, path_of("made/out.jsonl"), str_of(settings), out);
}

static void append(ResumableFile *file, const char *text)
{
    StrBuf lines = {0};
    strbuf_puts(&lines, text);
    EXPECT_OK(resumable_file_append(file, &lines));
    strbuf_deinit(&lines);
}

static void expect_text(const char *name, const char *want)
{
    Str text = {"", 0};
    EXPECT_OK(file_read(&arena, path_of(name), 1 << 20, &text));
    EXPECT_STR(text.data, want);
}

static void a_file_grows_over_several_starts(void)
{
    ResumableFile file;
    begin_folder();
    EXPECT_OK(open_with("{\"n\": 1}", &file));
    append(&file, "one\ntw");
    resumable_file_close(&file);
    EXPECT_OK(open_with("{\"n\": 1}", &file));
    EXPECT_OK(resumable_file_cut(&file, 4));
    append(&file, "two\n");
    EXPECT(!is_there(path_of("made/out.jsonl")));
    EXPECT_OK(resumable_file_finish(&file));
    resumable_file_close(&file);
    expect_text("made/out.jsonl", "one\ntwo\n");
    EXPECT(!is_there(path_of("made/out.jsonl.part")));
    EXPECT_OK(open_with("{\"n\": 1}", &file));
    EXPECT_INT(file.fd, -1); /* the output file is complete */
    resumable_file_close(&file);
    end_folder();
}

static void other_settings_are_refused(void)
{
    ResumableFile file;
    begin_folder();
    EXPECT_OK(open_with("{\"n\": 1, \"seed\": 3}", &file));
    resumable_file_close(&file);
    EXPECT_OK(open_with("{\"n\": 1, \"seed\": 2}", &file)); /* nothing was written yet */
    append(&file, "one\n");
    resumable_file_close(&file);
    EXPECT_FAILS(open_with("{\"n\": 2, \"seed\": 2, \"top_k\": 4}", &file), ERR_INVALID, "n was 1 and is 2, top_k was not given and is 4");
    EXPECT_CONTAINS(status_message(), "out.jsonl.part was begun with other settings");
    EXPECT_FAILS(open_with("{\"n\": 1}", &file), ERR_INVALID, "seed was 2 and is not given");
    EXPECT_OK(open_with("{\"seed\":2,\"n\":1}", &file));
    EXPECT_OK(resumable_file_cut(&file, 4));
    EXPECT_OK(resumable_file_finish(&file));
    resumable_file_close(&file);
    EXPECT_FAILS(open_with("{\"n\": 7, \"seed\": 2}", &file), ERR_INVALID, "out.jsonl was made with other settings: n was 1 and is 7");
    expect_text("made/out.jsonl", "one\n");
    EXPECT_OK(file_remove_tree(path_of("made/out.jsonl.settings.json")));
    EXPECT_FAILS(open_with("{\"n\": 1, \"seed\": 2}", &file), ERR_INVALID, "choose another --out");
    EXPECT_OK(file_write_atomic(path_of("made/out.jsonl.settings.json"), "[]", 2));
    EXPECT_FAILS(open_with("{\"n\": 1, \"seed\": 2}", &file), ERR_INVALID, "expected an object of settings");
    EXPECT_FAILS(resumable_file_open(&arena, path_of("made"), str_of("{}"), &file), ERR_INVALID, "made is a folder");
    end_folder();
}

TEST_MAIN(TEST(a_row_is_a_prompt), TEST(bad_rows_are_named_by_line), TEST(a_file_without_rows_or_a_template_is_refused),
          TEST(the_hash_is_of_what_the_model_is_fed), TEST(stop_texts_end_an_answer_and_are_left_out), TEST(log_probabilities_are_json),
          TEST(a_file_grows_over_several_starts), TEST(other_settings_are_refused))
