/* From a sample to token ids and which of them are trained.
 *
 * The whole sample is rendered and encoded once, so that ids are those of serving. Which bytes are trained comes from the
 * template's {% generation %} marks, or from further renderings of the conversation (mask_turns.c): contents and their stops,
 * nothing else. A token that holds a trained byte is trained, whatever the tokenizer. */
#pragma once

#include "data/format.h"
#include "text/template/memo.h"
#include "text/tokenizer.h"

/* What all threads share; immutable. */
typedef struct MaskRules MaskRules;
/* tmpl may be NULL (text, or instructions laid out by a prompt format). Both are borrowed. */
NODISCARD Status      mask_rules_create(const Tokenizer *tokenizer, const Template *tmpl, TrainOn train_on, MaskRules **out_rules);
void                  mask_rules_destroy(MaskRules *rules);      /* NULL is fine */
const TemplateTraits *mask_rules_traits(const MaskRules *rules); /* NULL: no template */

/* Turns are found by prefixes, which fits every template, and never by a template's loops: what these are tested against. */
void mask_rules_forbid_shortcuts(MaskRules *rules);
/* Every row is rendered by the template itself: what the memo is tested against. Before mask_encoder_init. */
void mask_rules_forbid_memo(MaskRules *rules);

/* A sample laid out and not yet encoded. */
typedef enum LayoutKind { LAYOUT_MESSAGES, LAYOUT_PROMPTED, LAYOUT_TEXT, LAYOUT_IDS } LayoutKind;
typedef struct Layout {
    size_t     begin, len;   /* in laid_out */
    size_t     prompt_bytes; /* of text, not trained */
    size_t     first_span;
    uint32_t   num_spans;
    uint32_t   num_unprinted; /* messages whose content the template doesn't print */
    LayoutKind kind;
} Layout;
typedef struct TurnSpan TurnSpan;

/* Samples one after the other. */
typedef struct MaskDocuments {
    TokenIds ids;
    uint8_t *mask; /* heap */
    size_t   mask_capacity;
} MaskDocuments;
void mask_documents_deinit(MaskDocuments *documents);

/* One thread's buffers and results. */
typedef struct MaskEncoder {
    const MaskRules  *rules;
    TokenizerScratch *scratch;
    TemplateMemo     *memo;                             /* NULL: no template */
    TokenIds          ids;                              /* of the last sample: a place in documents.ids */
    uint8_t          *mask;                             /* a byte an id: 1 trained; in documents.mask */
    Str               text;                             /* that was encoded */
    int64_t           num_trained;                      /* labels: trained ids but the first */
    int               turns_without_stop;               /* trained turns whose last token is neither special nor EOS */
    int               turns_without_calls, turns_empty; /* see TurnSpan */
    int               messages_unprinted;               /* whose content the template doesn't print */
    TokenAnchor      *anchors;                          /* internal: of the last conversation */
    size_t            num_anchors, anchor_capacity;
    bool              has_bytes; /* internal: tokens are its text's bytes */
    MaskDocuments     documents;
    size_t            begin; /* of the last sample in documents */
    TokenIds          spare;
    StrBuf            laid_out; /* texts of the samples that wait */
    Layout           *layouts;
    TurnSpan         *spans;
    size_t            num_layouts, layout_capacity, num_spans, span_capacity;
} MaskEncoder;
void mask_encoder_init(MaskEncoder *encoder, const MaskRules *rules);
void mask_encoder_deinit(MaskEncoder *encoder);

/* Laying out and encoding are two steps, so that a thread can do each for many samples in a row: the code and the tables of
 * both together don't fit a core's caches. */
void mask_clear(MaskEncoder *encoder); /* no sample waits */
/* A sample of messages, or of text with a prompt, becomes a text; what it was made of isn't needed any longer. ERR_INVALID
 * without a place: the template raised an error, or its prefixes don't fit together. */
NODISCARD Status mask_lay_out(MaskEncoder *encoder, Arena *arena, const Sample *sample);
void             mask_lay_text_out(MaskEncoder *encoder, Str text); /* a whole document, as mask_encode_text takes it */
/* Encodes the index-th of the samples that wait. */
NODISCARD Status mask_encode_waiting(MaskEncoder *encoder, size_t index);
/* The last sample stays in `documents`, and the next one comes behind it; else that takes its place. */
void mask_keep(MaskEncoder *encoder);
/* Both steps for one sample; what waited is forgotten. */
NODISCARD Status mask_encode(MaskEncoder *encoder, Arena *arena, const Sample *sample);

/* A document, or a part of one: BOS before the first part if the tokenizer adds it, EOS after the last; all trained. */
NODISCARD Status mask_encode_text(MaskEncoder *encoder, Str text, bool is_first, bool is_last);
