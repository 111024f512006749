/* surogate render MODEL_DIR --messages FILE.json: renders messages with the folder's chat template. */
#include "cli/cli.h"

#include "files/file.h"
#include "infer/chat.h"
#include "model/hf_model.h"

#include <string.h>

enum { MAX_INPUT_BYTES = 256 << 20 };

typedef struct RenderArgs {
    const char *messages, *tools, *documents, *template_name;
    StrList     variables; /* "k=v" */
    bool        add_generation_prompt;
} RenderArgs;

/* Reads a list from a file: the file's value itself, or a member of its object. */
static Status read_list(Arena *arena, const char *path, const char *member, const JsonValue **out)
{
    Str        text;
    JsonValue *root = arena_new(arena, JsonValue);
    TRY(file_read_stream(arena, cli_input_path(path), MAX_INPUT_BYTES, &text));
    TRY(json_parse(arena, path, text.data, text.len, root));
    *out = root->type == JSON_OBJECT && json_get(root, member) ? json_get(root, member) : root;
    FAIL_IF((*out)->type != JSON_ARRAY, ERR_INVALID, "%s: expected a list of %s, or an object with the field \"%s\"; got %s", path, member,
            member, json_type_name((*out)->type));
    return OK;
}

static Status render(CliArgs *args, const char *dir, const RenderArgs *r)
{
    TemplateInput  input = {.add_generation_prompt = r->add_generation_prompt};
    TemplateOutput out = {0};
    Template      *tmpl;
    bool           is_dir;
    TRY(file_is_dir(dir, &is_dir));
    FAIL_IF(!is_dir, ERR_INVALID, "%s is a file; expected a model's folder", dir);
    TRY(read_list(&args->arena, r->messages, "messages", &input.messages));
    if (r->tools) TRY(read_list(&args->arena, r->tools, "tools", &input.tools));
    if (r->documents) TRY(read_list(&args->arena, r->documents, "documents", &input.documents));
    TRY(cli_variables(&args->arena, &r->variables, &input.variables));
    TRY(template_load(dir, r->template_name, input.tools != NULL, &tmpl));
    FAIL_IF(!tmpl, ERR_NOT_FOUND, "%s has no chat template: expected chat_template.jinja, or chat_template in tokenizer_config.json", dir);
    Status status = chat_render(tmpl, &input, &out);
    if (status == OK) status = cli_print(&out.text);
    template_output_deinit(&out);
    template_destroy(tmpl);
    return status;
}

Status cmd_render(CliArgs *args)
{
    RenderArgs r = {0};
    bool       done;
    const Flag flags[] = {
        {"--messages", FLAG_TEXT, &r.messages, "FILE",
         "JSON list of messages (role, content, ...), or an object with the field messages; -: from standard input"},
        {"--tools", FLAG_TEXT, &r.tools, "FILE", "JSON list of tool definitions"},
        {"--documents", FLAG_TEXT, &r.documents, "FILE", "JSON list of documents"},
        {"--add-generation-prompt", FLAG_SWITCH, &r.add_generation_prompt, NULL, "end with the beginning of an assistant's answer"},
        {"--var", FLAG_LIST, &r.variables, "NAME=VALUE", "a variable of the template, as JSON or text; may be given several times"},
        {"--template", FLAG_TEXT, &r.template_name, "NAME", "name of the template, if the folder has several (default)"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    FAIL_IF(!r.messages, ERR_INVALID, "surogate render: --messages FILE is missing");
    const char *dir, *gguf;
    TRY(hf_local_dir(&args->arena, args->words[0], &dir, &gguf));
    return render(args, dir, &r);
}
