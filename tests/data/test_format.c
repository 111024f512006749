/* The format that `auto` detects for real and small datasets, and the samples that are made of their rows. */
#include "data/format.h"
#include "data/record.h"
#include "data_util.h"

static const TemplateTraits plain_template,
    toolless_template = {.hides_tools = true, .hides_names = true, .hides_tool_names = true, .hides_call_ids = true},
    thinking_template = {.reasoning_key = "thinking"}, texts_template = {.text_arguments = true}, parts_template = {.takes_parts = true},
    thoughts_template = {.takes_parts = true, .takes_thoughts = true};

/* Detects the format from the file's first row; *sample receives that row's sample. */
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
    format.nulls_are_left_out = status == OK && record.file->is_rows;
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
    Status   status = format_detect(&options, &row, &format);
    FieldSet unused = {0};
    format.unused = &unused;
    if (status == OK) status = format_row(&arena, &options, &format, &row, tmpl, &sample);
    if (status != OK)
        strbuf_puts(&text, status_message());
    else if (sample.messages)
        json_write(&text, sample.messages, -1);
    else
        strbuf_printf(&text, "%.*s|%.*s", (int)sample.prompt_bytes, sample.text.data, (int)(sample.text.len - sample.prompt_bytes),
                      sample.text.data + sample.prompt_bytes);
    for (uint32_t i = 0; sample.train && i < sample.messages->count; i++)
        if (sample.train[i] >= 0) strbuf_printf(&text, " %u:%d", i + 1, sample.train[i]);
    if (unused.count) {
        strbuf_puts(&text, " unused ");
        field_set_put(&unused, &text);
    }
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
    for (int is_text = 0; is_text < 2; is_text++)
        EXPECT_STR(
            messages_for(&texts_template,
                         is_text ? TALK("{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}]}")
                                 : TALK("{\"role\": \"assistant\", \"tool_calls\": [{\"name\": \"f\", \"arguments\": {\"x\": 1}}]}"),
                         none),
            "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"function\": "
            "{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}]}]");
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
               "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"f\"}] unused messages, answer");
    EXPECT_STR(messages_of(both, (DatasetOptions){.text_field = "foo"}), "|f unused messages, question, answer");
    DatasetOptions defaults = {.messages_field = "messages",
                               .instruction_field = "instruction",
                               .output_field = "output",
                               .input_field = "input",
                               .text_field = "text"};
    EXPECT_STR(messages_of(both, defaults), "[{\"role\": \"user\", \"content\": \"m\"}] unused question, answer, foo");
    defaults.type = DATASET_TEXT;
    defaults.messages_field = "conv"; /* a field of another type: ignored */
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
        "{\"q\": a} b|c unused system");
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

#define USER "{\"role\": \"user\", \"content\": \"a\"}"
#define ANSWER "{\"role\": \"assistant\", \"content\": \"b\"}"

static void lists_of_messages_have_many_forms(void)
{
    static const char *const rows[] = {
        "[" USER ", " ANSWER "]",
        "{\"messages\": \"[{\\\"role\\\": \\\"user\\\", \\\"content\\\": \\\"a\\\"}, {\\\"role\\\": \\\"assistant\\\", \\\"content\\\": \\\"b\\\"}]\"}",
        "{\"messages\": [\"{\\\"role\\\": \\\"user\\\", \\\"content\\\": \\\"a\\\"}\", " ANSWER "]}",
        "{\"conversations\": \" [{\\\"from\\\": \\\"human\\\", \\\"value\\\": \\\"a\\\"}, {\\\"from\\\": \\\"gpt\\\", \\\"value\\\": \\\"b\\\"}]\"}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": \"a\"}]}, {\"role\": \"assistant\", "
        "\"content\": [{\"type\": \"output_text\", \"text\": \"b\"}]}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"value\": \"a\"}]}, {\"role\": \"assistant\", "
        "\"content\": [{\"content\": \"b\"}]}]}",
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        EXPECT_STR(messages_of(rows[i], (DatasetOptions){0}), "[" USER ", " ANSWER "]");
    EXPECT_CONTAINS(messages_of("[" USER "]", (DatasetOptions){.type = DATASET_TEXT}), "this is array");
    EXPECT_CONTAINS(
        messages_of(TALK("{\"role\": \"user\", \"content\": [{\"type\": \"refusal\", \"refusal\": \"a\"}]}"), (DatasetOptions){0}),
        "message 1: part 1 of the content is no");
    EXPECT_STR(messages_for(&parts_template,
                            TALK("{\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": \"a\", \"train\": 0}]}"),
                            (DatasetOptions){0}),
               "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}]}] unused messages[].content[].train");
}

/* TRL's format: the prompt isn't trained, unless a message itself asks for it. */
static void prompts_and_completions_may_be_messages(void)
{
    static const char both[] = "{\"prompt\": [" ANSWER ", " USER "], \"completion\": [" ANSWER "]}";
    EXPECT_STR(messages_of(both, (DatasetOptions){0}), "[" ANSWER ", " USER ", " ANSWER "] 1:0 2:0");
    EXPECT_STR(messages_of(both, (DatasetOptions){.train_on = TRAIN_ON_ALL}), "[" ANSWER ", " USER ", " ANSWER "]");
    EXPECT_STR(messages_of("{\"prompt\": [" USER "], \"completion\": \"b\"}", (DatasetOptions){0}), "[" USER ", " ANSWER "] 1:0");
    EXPECT_STR(messages_of("{\"prompt\": [{\"role\": \"user\", \"content\": \"a\", \"train\": true}], \"completion\": [" ANSWER
                           "], \"id\": 1}",
                           (DatasetOptions){0}),
               "[" USER ", " ANSWER "] 1:1 unused id");
    EXPECT_STR(messages_of("{\"prompt\": \"a\", \"completion\": \"b\"}", (DatasetOptions){0}), "[" USER ", " ANSWER "]");
}

static void thinking_may_be_a_part(void)
{
    static const char *const parts[] = {
        "{\"type\": \"thinking\", \"thinking\": \"t\"}",
        "{\"type\": \"thinking\", \"thinking\": [{\"type\": \"text\", \"text\": \"t\"}]}",
        "{\"type\": \"reasoning\", \"value\": \"t\"}",
    };
    DatasetOptions none = {0};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char row[400];
        snprintf(row, sizeof row, TALK("{\"role\": \"assistant\", \"content\": [%s, {\"type\": \"text\", \"text\": \"a\"}]}"), parts[i]);
        EXPECT_STR(messages_of(row, none), "[{\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"t\"}]");
        EXPECT_STR(messages_for(&thinking_template, row, none), "[{\"role\": \"assistant\", \"content\": \"a\", \"thinking\": \"t\"}]");
        EXPECT_STR(messages_for(&parts_template, row, none),
                   "[{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}], \"reasoning_content\": \"t\"}]");
        EXPECT_STR(messages_for(&thoughts_template, row, none),
                   "[{\"role\": \"assistant\", \"content\": [{\"type\": \"thinking\", \"thinking\": "
                   "\"t\"}, {\"type\": \"text\", \"text\": \"a\"}]}]");
    }
    EXPECT_CONTAINS(
        messages_of(TALK("{\"role\": \"assistant\", \"reasoning\": \"r\", \"content\": [{\"type\": \"thinking\", \"thinking\": \"t\"}]}"),
                    none),
        "message 1 has thinking among its parts and in \"reasoning\"");
}

static void every_name_of_a_flag_is_read(void)
{
    static const char *const flags[][2] = {
        {"\"train\": false", " 2:0"},
        {"\"training\": false", " 2:0"},
        {"\"weight\": 0", " 2:0"},
        {"\"weight\": 0.0", " 2:0"},
        {"\"loss\": false", " 2:0"},
        {"\"loss\": true", " 2:1"},
        {"\"loss_weight\": 0", " 2:0"},
        {"\"masked\": true", " 2:0"},
        {"\"loss\": 1.25", " unused messages[].loss"},
        {"\"train\": true, \"masked\": false", " 2:1"},
    };
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        char row[200], want[300];
        snprintf(row, sizeof row, TALK(USER ", {\"role\": \"assistant\", \"content\": \"b\", %s}"), flags[i][0]);
        snprintf(want, sizeof want, "[" USER ", " ANSWER "]%s", flags[i][1]);
        EXPECT_STR(messages_of(row, (DatasetOptions){0}), want);
    }
    EXPECT_CONTAINS(messages_of(TALK("{\"role\": \"assistant\", \"content\": \"b\", \"train\": true, \"weight\": 0}"), (DatasetOptions){0}),
                    "message 1: \"train\" and \"weight\" disagree");
}

static void tools_and_calls_may_be_json_texts(void)
{
    static const char *const tools[] = {
        "\"[{\\\"name\\\": \\\"f\\\", \\\"parameters\\\": {\\\"x\\\": null}}]\"",
        "[\"{\\\"name\\\": \\\"f\\\", \\\"parameters\\\": {\\\"x\\\": null}}\"]",
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": \"{\\\"x\\\": null}\"}}]",
        "[{\"type\": \"function\", \"function\": \"{\\\"name\\\": \\\"f\\\", \\\"parameters\\\": {\\\"x\\\": null}}\"}]",
    };
    static const char *const calls[] = {
        "\"[{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"x\\\": null}}]\"",
        "[\"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"x\\\": null}}\"]",
        "[{\"type\": \"function\", \"function\": \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"x\\\": null}}\"}]",
        "[{\"type\": \"function\", \"index\": 1, \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": null}\"}}]",
    };
    for (size_t i = 0; i < sizeof tools / sizeof tools[0]; i++) {
        char row[400], want[400];
        snprintf(row, sizeof row, "{\"messages\": [" USER "], \"tools\": %s}", tools[i]);
        EXPECT_STR(messages_for(&parts_template, row, (DatasetOptions){0}),
                   "[" USER "] tools [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"x\": null}}}]");
        snprintf(row, sizeof row, TALK("{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": %s}"), calls[i]);
        snprintf(want, sizeof want,
                 "[{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"function\": "
                 "{\"name\": \"f\", \"arguments\": {\"x\": null}}}]}]%s",
                 i == 3 ? " unused messages[].tool_calls[].index" : "");
        EXPECT_STR(messages_of(row, (DatasetOptions){0}), want);
    }
    EXPECT_CONTAINS(messages_of("{\"messages\": [" USER "], \"tools\": [\"f\"]}", (DatasetOptions){0}),
                    "field \"tools\": tool 1 is no JSON object: f");
}

static void unread_fields_are_named(void)
{
    DatasetOptions none = {0}, prompt = {.prompt_format = "{instruction}"};
    EXPECT_STR(messages_of("{\"text\": \"t\", \"meta\": {\"a\": 1}, \"url\": null, \"tags\": []}", none), "|t unused meta");
    EXPECT_CONTAINS(messages_of("{\"id\": 5, \"system_prompt\": \"S\", \"question\": \"a\", \"response\": \"b\"}", none),
                    "[{\"role\": \"system\", \"content\": \"S\"}, " USER ", " ANSWER "] unused id");
    EXPECT_STR(messages_of("{\"system_prompt\": \"S\", \"question\": \"a\", \"response\": \"b\"}", (DatasetOptions){.system_prompt = "F"}),
               "[{\"role\": \"system\", \"content\": \"F\"}, " USER ", " ANSWER "] unused system_prompt");
    EXPECT_STR(messages_for(&toolless_template,
                            "{\"instruction\": \"a\", \"output\": \"b\", \"tools\": [{\"name\": \"f\"}], \"history\": \"x\"}", none),
               "[" USER ", " ANSWER "] unused tools, history tools [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]");
    EXPECT_STR(messages_for(&parts_template, "{\"instruction\": \"a\", \"output\": \"b\", \"tools\": [{\"name\": \"f\"}]}", none),
               "[" USER ", " ANSWER "] tools [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]");
    EXPECT_STR(messages_of("{\"instruction\": \"a\", \"output\": \"b\", \"tools\": \"hammer\"}", none),
               "[" USER ", " ANSWER "] unused tools");
    EXPECT_STR(messages_of("{\"instruction\": \"a\", \"output\": \"b\", \"tools\": [{\"name\": \"f\"}]}", prompt), "a|b unused tools");
    EXPECT_STR(messages_of("{\"system\": \"S\", \"messages\": [{\"role\": \"system\", \"content\": \"T\"}, " USER "], \"rejected\": [" USER
                           "]}",
                           none),
               "[{\"role\": \"system\", \"content\": \"T\"}, " USER "] unused system, rejected");
    EXPECT_STR(messages_of(TALK("{\"role\": \"user\", \"content\": \"a\", \"id\\u001b[1m\": 3, \"value\": \"v\"}"), none),
               "[" USER "] unused messages[].id?[1m, messages[].value");
    EXPECT_CONTAINS(messages_for(&toolless_template, TALK("{\"role\": \"user\", \"content\": \"a\", \"name\": \"n\"}"), none),
                    "unused messages[].name");
    EXPECT_CONTAINS(messages_for(&toolless_template, TALK("{\"role\": \"tool\", \"content\": \"a\", \"tool_call_id\": \"n\"}"), none),
                    "unused messages[].tool_call_id");
    EXPECT_CONTAINS(messages_of("{\"messages\": [" USER "], \"instruction\": \"i\", \"output\": \"o\"}", none),
                    "unused instruction, output");
}

/* tests/fixtures/chats.parquet: null fields of structs count as absent; an explicit null in JSON text stays. */
static void parquet_has_no_filler_nulls(void)
{
    DatasetOptions options = {0};
    Arena          arena = {0};
    Sample         sample;
    StrBuf         text = {0};
    EXPECT_STR(detect(&arena, &options, "tests/fixtures/chats.parquet", &sample), "conversation (messages: messages[].role/content)");
    json_write(&text, sample.messages, -1);
    json_write(&text, sample.tools, -1);
    EXPECT(!strstr(strbuf_cstr(&text), "null"));
    EXPECT_INT(sample.train[3], 0);
    EXPECT_STR(detect(&arena, &(DatasetOptions){.text_field = "asked"}, "tests/fixtures/chats.parquet", &sample), "text (asked)");
    EXPECT_STR(sample.text.data, "{\"city\": null}");
    strbuf_deinit(&text);
    arena_deinit(&arena);
}

TEST_MAIN(TEST(lists_of_messages_have_many_forms), TEST(prompts_and_completions_may_be_messages), TEST(thinking_may_be_a_part),
          TEST(every_name_of_a_flag_is_read), TEST(tools_and_calls_may_be_json_texts), TEST(unread_fields_are_named),
          TEST(parquet_has_no_filler_nulls), TEST(prompts_are_checked), TEST(bare_functions_are_wrapped_as_tools),
          TEST(values_keep_all_their_characters), TEST(messages_keep_what_they_say),
          TEST(thinking_goes_by_the_name_that_the_template_prints), TEST(flags_are_yes_or_no), TEST(a_system_column_counts_by_row),
          TEST(named_fields_must_be_there), TEST(likely_causes_are_said), TEST(real_datasets_are_recognised), TEST(rows_become_messages),
          TEST(wrong_fields_are_named))
