/* What auto takes real and small datasets for, and what it makes of their rows. */
#include "data/format.h"
#include "data/record.h"
#include "data_util.h"

static const TemplateTraits plain_template, thinking_template = {.reasoning_key = "thinking"};

/* Format of the file's first row; the row made ready is left in *sample. */
static const char *detect(Arena *arena, const DatasetOptions *options, const char *path, Sample *sample)
{
    static RowFormat format;
    char            *paths[] = {(char *)path};
    Reader          *reader;
    Record           record;
    bool             has;
    JsonValue       *row = arena_new(arena, JsonValue);
    EXPECT_OK(reader_open(paths, 1, &reader));
    Status status = reader_next(reader, &record, &has);
    if (status == OK && has) status = record_parse(arena, &record, row);
    if (status == OK) status = format_detect(options, row, &format);
    if (status == OK) status = format_row(arena, options, &format, row, &plain_template, sample);
    reader_close(reader);
    return status == OK ? format.description : status_message();
}

static void real_datasets_are_recognised(void)
{
    static const char *const cases[][2] = {
        {"c4_demo.jsonl", "text (text)"},
        {"fastchat_dummy_conversation.json", "conversation (ShareGPT: conversations[].from/value)"},
        {"glaive_toolcall_en_demo.json", "conversation (ShareGPT: conversations[].from/value)"},
        {"gsm8k_train.jsonl", "instruction (question -> answer)"},
        {"identity.json", "instruction (Alpaca: instruction + input -> output)"},
        {"litgpt_dolly.json", "instruction (Dolly: instruction + context -> response)"},
        {"torchtitan_sft.json", "instruction (question -> answer)"},
        {"torchtune_chat_tiny.json", "conversation (ShareGPT: conversations[].from/value)"},
        {"torchtune_instruct_tiny.json", "instruction (Dolly: instruction -> response)"},
        {"tinyshakespeare.txt", "text (text)"},
    };
    const char *shared = test_shared_dir();
    if (!shared) SKIP("no ../shared");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Arena          arena = {0};
        DatasetOptions options = {0};
        Sample         sample;
        char           path[4300];
        snprintf(path, sizeof path, "%s/data/datasets/%s", shared, cases[i][0]);
        EXPECT_STR(detect(&arena, &options, path, &sample), cases[i][1]);
        arena_deinit(&arena);
    }
}

static const char *messages_for(const TemplateTraits *tmpl, const char *json, DatasetOptions options)
{
    static StrBuf text;
    Arena         arena = {0};
    JsonValue     row;
    RowFormat     format;
    Sample        sample = {0};
    strbuf_clear(&text);
    EXPECT_OK(json_parse(&arena, "row", json, strlen(json), &row));
    Status status = format_detect(&options, &row, &format);
    if (status == OK) status = format_row(&arena, &options, &format, &row, tmpl, &sample);
    if (status != OK)
        strbuf_puts(&text, status_message());
    else if (sample.messages)
        json_write(&text, sample.messages, -1);
    else
        strbuf_printf(&text, "%.*s|%.*s", (int)sample.prompt_bytes, sample.text.data, (int)(sample.text.len - sample.prompt_bytes),
                      sample.text.data + sample.prompt_bytes);
    if (sample.tools) {
        strbuf_puts(&text, " tools ");
        json_write(&text, sample.tools, -1);
    }
    arena_deinit(&arena);
    return strbuf_cstr(&text);
}

static const char *messages_of(const char *json, DatasetOptions options)
{
    return messages_for(&plain_template, json, options);
}

static void rows_become_messages(void)
{
    EXPECT_STR(messages_of("{\"instruction\": \"a\", \"input\": \"b\", \"output\": \"c\"}", (DatasetOptions){.system_prompt = "s"}),
               "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"a\\n\\nb\"}, "
               "{\"role\": \"assistant\", \"content\": \"c\"}]");
    EXPECT_STR(
        messages_of("{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"function_call\", \"value\": "
                    "\"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": \\\"{\\\\\\\"x\\\\\\\": 1}\\\"}\"}], \"tools\": \"[{\\\"t\\\": 1}]\"}",
                    (DatasetOptions){0}),
        "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]}] tools [{\"t\": 1}]");
    EXPECT_STR(messages_of("{\"q\": \"a\", \"r\": 5}", (DatasetOptions){.instruction_field = "q", .output_field = "r"}),
               "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"5\"}]");
    EXPECT_STR(messages_of("{\"log\": [{\"who\": \"user\", \"says\": \"a\"}]}",
                           (DatasetOptions){.messages_field = "log", .role_property = "who", .content_property = "says"}),
               "[{\"role\": \"user\", \"content\": \"a\"}]");
    EXPECT_STR(messages_of("{\"instruction\": \"a\", \"output\": \"c\"}", (DatasetOptions){.prompt_format = "<{instruction}> {output}!"}),
               "<a> |c!");
}

static void values_keep_all_their_characters(void)
{
    EXPECT_STR(messages_of("{\"instruction\": \"a\\u0000b\", \"input\": \"c\\u0000d\", \"output\": \"e\\u0000f\"}", (DatasetOptions){0}),
               "[{\"role\": \"user\", \"content\": \"a\\u0000b\\n\\nc\\u0000d\"}, "
               "{\"role\": \"assistant\", \"content\": \"e\\u0000f\"}]");
    EXPECT_STR(messages_of("{\"q\": \"a\", \"input\": 18446744073709551615, \"r\": -123456789012345678901234}",
                           (DatasetOptions){.instruction_field = "q", .output_field = "r"}),
               "[{\"role\": \"user\", \"content\": \"a\\n\\n18446744073709551615\"}, "
               "{\"role\": \"assistant\", \"content\": \"-123456789012345678901234\"}]");
}

static void bare_functions_are_wrapped_as_tools(void)
{
    static const char talk[] = "\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]",
                      wrapped[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]";
    static const char *const tools[] = {
        "\"tools\": [{\"name\": \"f\"}]",
        "\"tools\": \"[{\\\"name\\\": \\\"f\\\"}]\"",
        "\"functions\": [{\"name\": \"f\"}]",
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
        "\"functions\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]",
    };
    for (size_t i = 0; i < sizeof tools / sizeof *tools; i++) {
        char row[400], want[400];
        snprintf(row, sizeof row, "{%s, %s}", talk, tools[i]);
        snprintf(want, sizeof want, "[{\"role\": \"user\", \"content\": \"a\"}] tools %s", wrapped);
        EXPECT_STR(messages_of(row, (DatasetOptions){0}), want);
    }
}

#define TALK(messages) "{\"messages\": [" messages "]}"

#define THOUGHT(thinking) TALK("{\"role\": \"assistant\", \"content\": \"a\", " thinking "}")

static void thinking_goes_by_the_name_that_the_template_prints(void)
{
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    static const char        as_thinking[] = "[{\"role\": \"assistant\", \"content\": \"a\", \"thinking\": \"t\"}]";
    DatasetOptions           none = {0};
    for (size_t i = 0; i < 3; i++) {
        char row[200], want[200];
        snprintf(row, sizeof row, THOUGHT("\"%s\": \"t\""), names[i]);
        snprintf(want, sizeof want, "[{\"role\": \"assistant\", \"content\": \"a\", \"%s\": \"t\"}]", names[i]);
        EXPECT_STR(messages_for(&thinking_template, row, none), as_thinking);
        EXPECT_STR(messages_of(row, none), want);
    }
    EXPECT_STR(messages_for(&thinking_template, THOUGHT("\"reasoning_content\": \"\", \"reasoning\": \"t\""), none), as_thinking);
    EXPECT_STR(messages_for(&thinking_template, THOUGHT("\"reasoning\": null"), none), "[{\"role\": \"assistant\", \"content\": \"a\"}]");
}

static void messages_keep_what_they_say(void)
{
    DatasetOptions none = {0};
    EXPECT_STR(
        messages_of(TALK("{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, \"b\", {\"text\": \"c\"}]}"), none),
        "[{\"role\": \"user\", \"content\": \"abc\"}]");
    EXPECT_CONTAINS(messages_of(TALK("{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"url\": \"u\"}]}"), none),
                    "message 1: part 1 of the content is no {\"type\": \"text\"");
    EXPECT_STR(
        messages_of(TALK("{\"role\": \"User\", \"content\": \"a\"}, {\"role\": \"CHATBOT\", \"content\": \"b\"}, "
                         "{\"role\": \"function\", \"name\": \"f\", \"content\": \"c\"}, {\"role\": \"developer\", \"content\": \"d\"}"),
                    none),
        "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, "
        "{\"role\": \"tool\", \"content\": \"c\", \"name\": \"f\"}, {\"role\": \"system\", \"content\": \"d\"}]");
    EXPECT_STR(
        messages_of(
            "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"function_call\": {\"name\": \"f\", \"arguments\": \"\"}}], "
            "\"functions\": [{\"name\": \"f\"}]}",
            none),
        "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"function\": "
        "{\"name\": \"f\", \"arguments\": {}}}]}] tools [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]");
    EXPECT_CONTAINS(messages_of(TALK("{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": \"{broken\"}]}"), none),
                    "message 1: the arguments of tool call 1 aren't JSON: {broken");
    EXPECT_STR(messages_of("{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"x\", \"y\"]]}", none),
               "[{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"content\": \"y\"}, "
               "{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]");
    EXPECT_CONTAINS(messages_of("{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"x\"]]}", none), "\"history\": turn 1");
    EXPECT_CONTAINS(messages_of("{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"x\", \"y\"]]}",
                                (DatasetOptions){.prompt_format = "{instruction}"}),
                    "\"history\" holds earlier turns");
}

static void flags_are_yes_or_no(void)
{
    static const char *const flags[][2] = {
        {"\"train\": \"no\"", "message 1: \"train\""},
        {"\"weight\": 0.5", "message 1: \"weight\""},
        {"\"weight\": 2", "true, false, 1 or 0"},
        {"\"masked\": \"x\"", "message 1: \"masked\""},
        {"\"weight\": 1.0", "[{"},
        {"\"train\": null", "[{"},
        {"\"masked\": 1", "[{"},
    };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        char row[200];
        snprintf(row, sizeof row, TALK("{\"role\": \"assistant\", \"content\": \"a\", %s}"), flags[i][0]);
        EXPECT_CONTAINS(messages_of(row, (DatasetOptions){0}), flags[i][1]);
    }
}

static const char *second_of(const char *first, const char *second)
{
    static StrBuf  text;
    Arena          arena = {0};
    JsonValue      rows[2];
    RowFormat      format;
    Sample         sample = {0};
    DatasetOptions options = {0};
    EXPECT_OK(json_parse(&arena, "first", first, strlen(first), &rows[0]));
    EXPECT_OK(json_parse(&arena, "second", second, strlen(second), &rows[1]));
    EXPECT_OK(format_detect(&options, &rows[0], &format));
    EXPECT_OK(format_row(&arena, &options, &format, &rows[1], &plain_template, &sample));
    strbuf_clear(&text);
    json_write(&text, sample.messages, -1);
    arena_deinit(&arena);
    return strbuf_cstr(&text);
}

static void a_system_column_counts_by_row(void)
{
    EXPECT_CONTAINS(
        second_of("{\"instruction\": \"a\", \"output\": \"b\"}", "{\"instruction\": \"c\", \"output\": \"d\", \"system\": \"SYS\"}"),
        "\"content\": \"SYS\"");
    EXPECT_CONTAINS(second_of(TALK("{\"role\": \"user\", \"content\": \"a\"}"),
                              "{\"system\": \"SYS\", \"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}"),
                    "\"content\": \"SYS\"");
    EXPECT_CONTAINS(second_of("{\"system\": null, \"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}",
                              "{\"system\": \"SYS\", \"conversations\": [{\"from\": \"human\", \"value\": \"a\"}]}"),
                    "\"content\": \"SYS\"");
}

static void wrong_fields_are_named(void)
{
    EXPECT_CONTAINS(messages_of("{\"x\": 1}", (DatasetOptions){0}), "the row has x (");
    EXPECT_CONTAINS(messages_of("{\"x\": 1}", (DatasetOptions){.type = DATASET_CONVERSATION}), "set messages_field");
    EXPECT_CONTAINS(messages_of("{\"question\": \"a\", \"answer\": \"\"}", (DatasetOptions){0}), "\"answer\" is empty");
    EXPECT_CONTAINS(messages_of("{\"messages\": [{\"content\": \"a\"}]}", (DatasetOptions){0}), "message 1 has no \"role\"");
    EXPECT_CONTAINS(messages_of("[]", (DatasetOptions){0}), "a row is an object");
}

static void named_fields_must_be_there(void)
{
    const char *both = "{\"messages\": [{\"role\": \"user\", \"content\": \"m\"}], \"question\": \"q\", \"answer\": \"a\", \"foo\": \"f\"}";
    EXPECT_CONTAINS(messages_of(both, (DatasetOptions){.messages_field = "conv"}),
                    "messages_field is \"conv\", which the row doesn't have");
    EXPECT_CONTAINS(messages_of(both, (DatasetOptions){.instruction_field = "bar"}), "instruction_field is \"bar\"");
    EXPECT_CONTAINS(messages_of(both, (DatasetOptions){.type = DATASET_INSTRUCTION, .output_field = "bar"}), "output_field is \"bar\"");
    EXPECT_CONTAINS(messages_of(both, (DatasetOptions){.input_field = "bar"}), "input_field is \"bar\"");
    EXPECT_CONTAINS(messages_of(both, (DatasetOptions){.text_field = "bar"}), "text_field is \"bar\"");
    EXPECT_STR(messages_of(both, (DatasetOptions){.output_field = "foo"}),
               "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"f\"}]");
    EXPECT_STR(messages_of(both, (DatasetOptions){.text_field = "foo"}), "|f");
    DatasetOptions defaults = {.messages_field = "messages",
                               .instruction_field = "instruction",
                               .output_field = "output",
                               .input_field = "input",
                               .text_field = "text"};
    EXPECT_STR(messages_of(both, defaults), "[{\"role\": \"user\", \"content\": \"m\"}]");
    defaults.type = DATASET_TEXT;
    defaults.messages_field = "conv"; /* of another type: not looked at */
    EXPECT_CONTAINS(messages_of("{\"text\": \"t\"}", defaults), "t");
}

static void prompts_are_checked(void)
{
    static const char row[] = "{\"instruction\": \"a\", \"input\": \"b\", \"output\": \"c\", \"system\": \"s\"}";
    EXPECT_CONTAINS(messages_of(row, (DatasetOptions){.prompt_format = "{instrction} {input}"}),
                    "prompt_format: {instrction} is none of {system}, {instruction}, {input}, {output}");
    EXPECT_CONTAINS(messages_of(row, (DatasetOptions){.prompt_format_no_input = "{inst}"}), "prompt_format_no_input: {inst} is none of");
    EXPECT_CONTAINS(messages_of(row, (DatasetOptions){.prompt_format = "only {system} {input} {output}"}),
                    "text for {instruction}, which its prompt format lacks");
    EXPECT_CONTAINS(messages_of(row, (DatasetOptions){.prompt_format = "{system} {instruction}"}), "text for {input}");
    EXPECT_CONTAINS(messages_of(row, (DatasetOptions){.prompt_format = "{instruction} {input}"}), "text for {system}");
    EXPECT_STR(
        messages_of(row, (DatasetOptions){.prompt_format = "{\"q\": {instruction}} {input}", .system_prompt_type = SYSTEM_PROMPT_NONE}),
        "{\"q\": a} b|c");
    EXPECT_CONTAINS(messages_of(row, (DatasetOptions){.system_prompt_type = SYSTEM_PROMPT_FIXED}), "system_prompt isn't set");
    EXPECT_CONTAINS(messages_of(row, (DatasetOptions){.system_prompt_field = "sys"}),
                    "system_prompt_field is \"sys\", which the row doesn't have");
    EXPECT_CONTAINS(messages_of("{\"text\": \"t\"}", (DatasetOptions){.system_prompt_field = "sys"}), "t");
}

static void likely_causes_are_said(void)
{
    EXPECT_CONTAINS(messages_of("{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}], \"rejected\": []}", (DatasetOptions){0}),
                    "preference data");
    EXPECT_CONTAINS(messages_of("{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}], \"rejected\": []}",
                                (DatasetOptions){.messages_field = "chosen"}),
                    "\"content\": \"a\"");
    EXPECT_CONTAINS(messages_of("{\"question\": \"a\", \"answer\": 5}", (DatasetOptions){0}),
                    "an answer must be a text, \"answer\" is integer");
    EXPECT_CONTAINS(messages_of("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", (DatasetOptions){0}), "preference data");
    EXPECT_CONTAINS(messages_of("{\"q;a\": \"1;2\"}", (DatasetOptions){0}), "separated by ','");
}

TEST_MAIN(TEST(prompts_are_checked), TEST(bare_functions_are_wrapped_as_tools), TEST(values_keep_all_their_characters),
          TEST(messages_keep_what_they_say), TEST(thinking_goes_by_the_name_that_the_template_prints), TEST(flags_are_yes_or_no),
          TEST(a_system_column_counts_by_row), TEST(named_fields_must_be_there), TEST(likely_causes_are_said),
          TEST(real_datasets_are_recognised), TEST(rows_become_messages), TEST(wrong_fields_are_named))
