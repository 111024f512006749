/* What auto takes real and small datasets for, and what it makes of their rows. */
#include "data/format.h"
#include "data/record.h"
#include "data_util.h"

/* Format of the file's first row; the row made ready is left in *sample. */
static const char *detect(Arena *arena, const DatasetOptions *options, const char *path, bool has_template, Sample *sample)
{
    static RowFormat format;
    char            *paths[] = { (char *)path };
    Reader          *reader;
    Record           record;
    bool             has;
    JsonValue       *row = arena_new(arena, JsonValue);
    EXPECT_OK(reader_open(paths, 1, &reader));
    Status status = reader_next(reader, &record, &has);
    if (status == OK && has) status = record_parse(arena, &record, row);
    if (status == OK) status = format_detect(options, row, &format);
    if (status == OK) status = format_row(arena, options, &format, row, has_template, sample);
    reader_close(reader);
    return status == OK ? format.description : status_message();
}

static void real_datasets_are_recognised(void)
{
    static const char *const cases[][2] = {
        { "c4_demo.jsonl", "text (text)" },
        { "fastchat_dummy_conversation.json", "conversation (ShareGPT: conversations[].from/value)" },
        { "glaive_toolcall_en_demo.json", "conversation (ShareGPT: conversations[].from/value)" },
        { "gsm8k_train.jsonl", "instruction (question -> answer)" },
        { "identity.json", "instruction (Alpaca: instruction + input -> output)" },
        { "litgpt_dolly.json", "instruction (Dolly: instruction + context -> response)" },
        { "torchtitan_sft.json", "instruction (question -> answer)" },
        { "torchtune_chat_tiny.json", "conversation (ShareGPT: conversations[].from/value)" },
        { "torchtune_hh_rlhf_tiny.json", "conversation (messages: chosen[].role/content)" },
        { "torchtune_instruct_tiny.json", "instruction (Dolly: instruction -> response)" },
        { "tinyshakespeare.txt", "text (text)" },
    };
    const char *shared = test_shared_dir();
    if (!shared) SKIP("no ../shared");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Arena          arena = { 0 };
        DatasetOptions options = { 0 };
        Sample         sample;
        char           path[4300];
        snprintf(path, sizeof path, "%s/data/datasets/%s", shared, cases[i][0]);
        EXPECT_STR(detect(&arena, &options, path, true, &sample), cases[i][1]);
        arena_deinit(&arena);
    }
}

static const char *messages_of(const char *json, DatasetOptions options)
{
    static StrBuf text;
    Arena         arena = { 0 };
    JsonValue     row;
    RowFormat     format;
    Sample        sample = { 0 };
    strbuf_clear(&text);
    EXPECT_OK(json_parse(&arena, "row", json, strlen(json), &row));
    Status status = format_detect(&options, &row, &format);
    if (status == OK) status = format_row(&arena, &options, &format, &row, true, &sample);
    if (status != OK) strbuf_puts(&text, status_message());
    else if (sample.messages) json_write(&text, sample.messages, -1);
    else strbuf_printf(&text, "%.*s|%.*s", (int)sample.prompt_bytes, sample.text.data, (int)(sample.text.len - sample.prompt_bytes),
                       sample.text.data + sample.prompt_bytes);
    if (sample.tools) {
        strbuf_puts(&text, " tools ");
        json_write(&text, sample.tools, -1);
    }
    arena_deinit(&arena);
    return strbuf_cstr(&text);
}

static void rows_become_messages(void)
{
    EXPECT_STR(messages_of("{\"instruction\": \"a\", \"input\": \"b\", \"output\": \"c\"}", (DatasetOptions){ .system_prompt = "s" }),
               "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"a\\n\\nb\"}, "
               "{\"role\": \"assistant\", \"content\": \"c\"}]");
    EXPECT_STR(messages_of("{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"function_call\", \"value\": "
                           "\"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \\\"{\\\\\\\"x\\\\\\\": 1}\\\"}\"}], \"tools\": \"[{\\\"t\\\": 1}]\"}",
                           (DatasetOptions){ 0 }),
               "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": "
               "\"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]}] tools [{\"t\": 1}]");
    EXPECT_STR(messages_of("{\"q\": \"a\", \"r\": 5}", (DatasetOptions){ .instruction_field = "q", .output_field = "r" }),
               "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"5\"}]");
    EXPECT_STR(messages_of("{\"log\": [{\"who\": \"user\", \"says\": \"a\"}]}",
                           (DatasetOptions){ .messages_field = "log", .role_property = "who", .content_property = "says" }),
               "[{\"role\": \"user\", \"content\": \"a\"}]");
    EXPECT_STR(messages_of("{\"instruction\": \"a\", \"output\": \"c\"}", (DatasetOptions){ .prompt_format = "<{instruction}> {output}!" }),
               "<a> |c!");
}

static void wrong_fields_are_named(void)
{
    EXPECT_CONTAINS(messages_of("{\"x\": 1}", (DatasetOptions){ 0 }), "the row has x (");
    EXPECT_CONTAINS(messages_of("{\"x\": 1}", (DatasetOptions){ .type = DATASET_CONVERSATION }), "set messages_field");
    EXPECT_CONTAINS(messages_of("{\"question\": \"a\", \"answer\": \"\"}", (DatasetOptions){ 0 }), "\"answer\" is empty");
    EXPECT_CONTAINS(messages_of("{\"messages\": [{\"content\": \"a\"}]}", (DatasetOptions){ 0 }), "message 1 has no \"role\"");
    EXPECT_CONTAINS(messages_of("[]", (DatasetOptions){ 0 }), "a row is an object");
}

static void named_fields_must_be_there(void)
{
    const char *both = "{\"messages\": [{\"role\": \"user\", \"content\": \"m\"}], \"question\": \"q\", \"answer\": \"a\", \"foo\": \"f\"}";
    EXPECT_CONTAINS(messages_of(both, (DatasetOptions){ .messages_field = "conv" }), "messages_field is \"conv\", which the row doesn't have");
    EXPECT_CONTAINS(messages_of(both, (DatasetOptions){ .instruction_field = "bar" }), "instruction_field is \"bar\"");
    EXPECT_CONTAINS(messages_of(both, (DatasetOptions){ .type = DATASET_INSTRUCTION, .output_field = "bar" }), "output_field is \"bar\"");
    EXPECT_CONTAINS(messages_of(both, (DatasetOptions){ .input_field = "bar" }), "input_field is \"bar\"");
    EXPECT_CONTAINS(messages_of(both, (DatasetOptions){ .text_field = "bar" }), "text_field is \"bar\"");
    EXPECT_STR(messages_of(both, (DatasetOptions){ .output_field = "foo" }),
               "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"f\"}]");
    EXPECT_STR(messages_of(both, (DatasetOptions){ .text_field = "foo" }), "|f");
    DatasetOptions defaults = { .messages_field = "messages", .instruction_field = "instruction", .output_field = "output",
                                .input_field = "input", .text_field = "text" };
    EXPECT_STR(messages_of(both, defaults), "[{\"role\": \"user\", \"content\": \"m\"}]");
    defaults.type = DATASET_TEXT;
    defaults.messages_field = "conv"; /* of another type: not looked at */
    EXPECT_CONTAINS(messages_of("{\"text\": \"t\"}", defaults), "t");
}

static void likely_causes_are_said(void)
{
    EXPECT_CONTAINS(messages_of("{\"question\": \"a\", \"answer\": 5}", (DatasetOptions){ 0 }), "an answer must be a text, \"answer\" is integer");
    EXPECT_CONTAINS(messages_of("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", (DatasetOptions){ 0 }), "preference data");
    EXPECT_CONTAINS(messages_of("{\"q;a\": \"1;2\"}", (DatasetOptions){ 0 }), "separated by ','");
}

TEST_MAIN(TEST(named_fields_must_be_there), TEST(likely_causes_are_said), TEST(real_datasets_are_recognised), TEST(rows_become_messages), TEST(wrong_fields_are_named))
