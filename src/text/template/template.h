/* Chat templates: Jinja as Hugging Face's models use it, rendered in a sandbox (bounded steps, depth and output).
 * A parsed Template is immutable and may be rendered from many threads. */
#pragma once

#include "base/json.h"

typedef struct Template Template;

/* `name` starts errors: "name:line: what". ERR_UNSUPPORTED for a construct we don't have. Rendering follows
 * transformers' settings: trim_blocks and lstrip_blocks on, loop controls, {% generation %}. */
NODISCARD Status template_parse(const char *name, const char *source, size_t len, Template **out_template);
void             template_destroy(Template *tmpl);

/* The model folder's own: chat_template.jinja, else chat_template in tokenizer_config.json (a text, or named ones: `which`, NULL
 * for "default"; with tools and one named "tool_use" that); named ones too in additional_chat_templates/. *out_template is NULL
 * when the folder has none. bos_token, eos_token, ... of tokenizer_config.json (and special_tokens_map.json, where that counts)
 * are kept as the template's variables.
 * Without `which` and tools the folder's "tool_use" comes along: inputs with tools are rendered by it. If it can't be read,
 * rendering them fails, and other inputs don't. */
NODISCARD Status template_load(const char *dir, const char *which, bool has_tools, Template **out_template);

/* The template that came along for inputs with tools; NULL: none did. It lives as long. */
const Template *template_with_tools(const Template *tmpl);

/* For a template from elsewhere: the folder's bos_token, eos_token, ... become its variables. Before the first render. */
NODISCARD Status template_use_folder(Template *tmpl, const char *dir);

/* strftime_now tells this time, in seconds, where an input names none. */
void    template_stop_clock(Template *tmpl, int64_t now_unix);
int64_t template_now(const Template *tmpl);       /* that time, else the clock's */
bool    template_asks_time(const Template *tmpl); /* false: no rendering depends on it */

/* The source of a template that comes with the program (templates.def); data NULL: there is none of that name. */
Str template_builtin(const char *name);
/* Appends their names, commas between them. */
void template_builtin_names(StrBuf *out);

/* A byte range of the output that {% generation %} marked. */
typedef struct TemplateSpan {
    size_t begin, end;
} TemplateSpan;

/* What a loop over the messages printed for one of them. */
typedef struct TemplateTurn {
    TemplateSpan span;
    uint32_t     message;
    bool         looks_around; /* more than the roles of other messages was read for it */
} TemplateTurn;

typedef struct TemplateOutput {
    StrBuf        text;
    TemplateSpan *spans; /* heap; NULL when none */
    size_t        num_spans;
    TemplateTurn *turns; /* heap, in the order of the text; NULL when none, or not asked for */
    size_t        num_turns;
} TemplateOutput;
void template_output_deinit(TemplateOutput *out);

typedef struct TemplateInput {
    const JsonValue *messages;  /* array */
    const JsonValue *tools;     /* array or NULL */
    const JsonValue *documents; /* array or NULL */
    const JsonValue *variables; /* object of further variables, or NULL; they win over the folder's */
    bool             add_generation_prompt;
    bool             marks_turns; /* asks for the output's turns */
    int64_t          now_unix;    /* for strftime_now, seconds; 0: template_now */
    int64_t          max_steps;   /* 0: 10 million */
    Arena           *arena;       /* what rendering needs lies here until the caller resets it; NULL: freed at the end */
} TemplateInput;

/* raise_exception and limits fail with ERR_INVALID, "name:line: message". */
NODISCARD Status template_render(const Template *tmpl, const TemplateInput *input, TemplateOutput *out);

uint64_t template_hash(const Template *tmpl); /* of its source and the folder's tokens: for caches */
