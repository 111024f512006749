/* What a template does with conversations of one shape, remembered: as many messages, with the same roles and members. Only
 * texts differ, and how those decide is remembered too, so that results are those of template_render, for a fraction of
 * the work. One thread's. Its clock stands still at now_unix. */
#pragma once

#include "text/template/template.h"

typedef struct TemplateMemo TemplateMemo;
TemplateMemo               *template_memo_create(const Template *tmpl, int64_t now_unix);
void                        template_memo_destroy(TemplateMemo *memo); /* NULL is fine */

/* A text in parts, which lie in the messages and in the memo; spans as in TemplateOutput. In the arena it was given. */
typedef struct TemplateParts {
    Str               *parts;
    size_t            *begins; /* (num_parts + 1) of each in the text */
    uint32_t           num_parts;
    size_t             len; /* of all */
    TemplateSpan      *spans;
    size_t             num_spans;
    const struct Path *path; /* the memo's; NULL: they aren't from there */
} TemplateParts;

/* The conversation of the calls of template_memo_render to come; it must stay. false: one that can't be remembered. */
bool template_memo_start(TemplateMemo *memo, const JsonValue *messages);
/* The turns of a text that came from the memo, in the arena. */
TemplateTurn *template_memo_turns(const TemplateParts *parts, Arena *arena, size_t *out_count);
/* Its first `count` messages, without tools. false: template_render has to do it. */
bool template_memo_render(TemplateMemo *memo, uint32_t count, bool add_generation_prompt, Arena *arena, TemplateParts *out);
