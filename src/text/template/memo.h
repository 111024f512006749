/* Caches what a template does with conversations of one shape: equal number of messages, with equal roles and members. Only the texts may
 * differ. The cache also records which properties of the texts the template checks. So the results equal those of template_render, for a
 * fraction of the work. For use by one thread. strftime_now gives now_unix. */
#pragma once

#include "text/template/template.h"

typedef struct TemplateMemo TemplateMemo;
TemplateMemo               *template_memo_create(const Template *tmpl, int64_t now_unix);
void                        template_memo_destroy(TemplateMemo *memo); /* memo may be NULL */

/* A text in parts, whose bytes belong to the messages and the memo. The arrays are in the arena passed to template_memo_render. spans: as
 * in TemplateOutput. */
typedef struct TemplateParts {
    Str               *parts;
    size_t            *begins; /* (num_parts + 1) byte offsets of the parts in the text, and its end */
    uint32_t           num_parts;
    size_t             len; /* bytes of the whole text */
    TemplateSpan      *spans;
    size_t             num_spans;
    const struct Path *path; /* owned by the memo; NULL: the parts don't come from a memo */
} TemplateParts;

/* Sets the conversation for the following calls of template_memo_render; `messages` must outlive these calls. False: it can't be cached. */
bool template_memo_start(TemplateMemo *memo, const JsonValue *messages);
/* The turns of a text that came from the memo, allocated in the arena. */
TemplateTurn *template_memo_turns(const TemplateParts *parts, Arena *arena, size_t *out_count);
/* Renders the first `count` messages, without tools. False: template_render must be used. */
bool template_memo_render(TemplateMemo *memo, uint32_t count, bool add_generation_prompt, Arena *arena, TemplateParts *out);
