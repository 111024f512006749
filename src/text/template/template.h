/* Chat templates: Jinja as Hugging Face's models use it, rendered in a sandbox (limited steps, depth and output). A parsed Template is
 * immutable; many threads may render it at once. */
#pragma once

#include "base/json.h"

typedef struct Template Template;

/* Parses a template. Error messages begin with `name`: "name:line: what". ERR_UNSUPPORTED: a construct that we don't support. Settings are
 * those of transformers: trim_blocks and lstrip_blocks on, loop controls, {% generation %}. */
NODISCARD Status template_parse(const char *name, const char *source, size_t len, Template **out_template);
void             template_destroy(Template *tmpl);

/* Loads the template of a model folder: chat_template.jinja, else chat_template in tokenizer_config.json, which is a text or a set of named
 * templates. Named templates may also be files in additional_chat_templates/. `which`: the name; NULL: "tool_use" if has_tools and there is
 * one, else "default". *out_template is NULL if the folder has none. bos_token, eos_token, ... of tokenizer_config.json become variables of
 * the template (for older files also those of special_tokens_map.json).
 * If `which` is NULL and has_tools is false, the folder's "tool_use" is loaded too, and renders inputs with tools. If it can't be read,
 * only rendering inputs with tools fails. */
NODISCARD Status template_load(const char *dir, const char *which, bool has_tools, Template **out_template);

/* The template that template_load also loaded for inputs with tools; NULL: none. Owned by `tmpl`. */
const Template *template_with_tools(const Template *tmpl);

/* For a template that isn't from the folder `dir`: bos_token, eos_token, ... of that folder become the template's variables. Call it before
 * the first render. */
NODISCARD Status template_use_folder(Template *tmpl, const char *dir);

/* Sets the time (Unix, in seconds) that strftime_now uses if an input gives none. */
void    template_stop_clock(Template *tmpl, int64_t now_unix);
int64_t template_now(const Template *tmpl);       /* the time set by template_stop_clock, else the current time */
bool    template_asks_time(const Template *tmpl); /* false: no rendering depends on the time */

/* The source of a built-in template (templates.def); data NULL: there is none of that name. */
Str template_builtin(const char *name);
/* Appends the names of the built-in templates, separated by commas. */
void template_builtin_names(StrBuf *out);

/* A byte range of the output that was inside {% generation %}. */
typedef struct TemplateSpan {
    size_t begin, end;
} TemplateSpan;

/* The output of one iteration of a loop over the messages. */
typedef struct TemplateTurn {
    TemplateSpan span;
    uint32_t     message;
    bool         looks_around; /* the iteration read more of other messages than their roles */
} TemplateTurn;

typedef struct TemplateOutput {
    StrBuf        text;
    TemplateSpan *spans; /* on the heap; NULL: none */
    size_t        num_spans;
    TemplateTurn *turns; /* on the heap, in the order of the output; NULL: none, or not requested */
    size_t        num_turns;
} TemplateOutput;
void template_output_deinit(TemplateOutput *out);

typedef struct TemplateInput {
    const JsonValue *messages;  /* array */
    const JsonValue *tools;     /* array or NULL */
    const JsonValue *documents; /* array or NULL */
    const JsonValue *variables; /* object of further variables, or NULL; they override the folder's variables */
    bool             add_generation_prompt;
    bool             marks_turns; /* requests TemplateOutput's turns */
    int64_t          now_unix;    /* time for strftime_now, in seconds; 0: template_now */
    int64_t          max_steps;   /* 0: the default, 10 million */
    Arena           *arena;       /* memory for rendering, until the caller resets it; NULL: a temporary arena */
} TemplateInput;

/* Renders a conversation. ERR_INVALID, with "name:line: message", also for raise_exception and exceeded limits. */
NODISCARD Status template_render(const Template *tmpl, const TemplateInput *input, TemplateOutput *out);

uint64_t template_hash(const Template *tmpl); /* hash of the source and the folder's tokens; for caches */
