/* From a sample to token ids and which of them are trained.
 *
 * The whole sample is rendered and encoded once, so that its ids are those of serving. Which bytes are trained comes from the
 * template's {% generation %} marks, or from further renderings of the conversation (mask_turns.c): contents and their stops,
 * nothing else. A token that holds a trained byte is trained, whatever the tokenizer. */
#pragma once

#include "data/format.h"
#include "text/template/memo.h"
#include "text/tokenizer.h"

/* Rules that all threads share; immutable. */
typedef struct MaskRules MaskRules;
/* tmpl NULL: for text, or instructions laid out by a prompt format. tokenizer and tmpl are borrowed. */
NODISCARD Status      mask_rules_create(const Tokenizer *tokenizer, const Template *tmpl, TrainOn train_on, MaskRules **out_rules);
void                  mask_rules_destroy(MaskRules *rules);      /* NULL is fine */
const TemplateTraits *mask_rules_traits(const MaskRules *rules); /* NULL: no template */

/* For tests: turns are found by prefixes or by change, never by a template's loops. */
void mask_rules_forbid_shortcuts(MaskRules *rules);
/* For tests: the template itself renders every row, without the memo. Call it before mask_encoder_init. */
void mask_rules_forbid_memo(MaskRules *rules);

/* A sample laid out and not yet encoded. */
typedef enum LayoutKind { LAYOUT_MESSAGES, LAYOUT_PROMPTED, LAYOUT_TEXT, LAYOUT_IDS } LayoutKind;
typedef struct Layout {
    size_t     begin, len;   /* the sample's bytes in MaskEncoder.laid_out */
    size_t     prompt_bytes; /* how many of the text's first bytes aren't trained */
    size_t     first_span;
    uint32_t   num_spans;
    uint32_t   num_unprinted; /* messages whose content the template doesn't print */
    LayoutKind kind;
} Layout;
typedef struct TurnSpan TurnSpan;

/* Encoded samples, one after the other. */
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
    TemplateMemo     *memo;                             /* NULL: no template, or forbidden (mask_rules_forbid_memo) */
    TokenIds          ids;                              /* ids of the last sample; points into documents.ids */
    uint8_t          *mask;                             /* one byte per id, 1: trained; points into documents.mask */
    Str               text;                             /* the text that was encoded last */
    int64_t           num_trained;                      /* trained ids, except the first, which is no label */
    int               turns_without_stop;               /* trained turns whose last token is neither special nor EOS */
    int               turns_without_calls, turns_empty; /* trained turns with TurnSpan.lacks_calls, with TurnSpan.is_empty */
    int               messages_unprinted;               /* messages whose content the template doesn't print */
    TokenAnchor      *anchors;                          /* internal: anchors of the last conversation */
    size_t            num_anchors, anchor_capacity;
    bool              has_bytes; /* internal: the bytes of the conversation's tokens are those of its text */
    MaskDocuments     documents;
    size_t            begin; /* index of the last sample's first id in documents */
    TokenIds          spare;
    StrBuf            laid_out; /* texts of the samples that are laid out and not yet encoded */
    Layout           *layouts;
    TurnSpan         *spans;
    size_t            num_layouts, layout_capacity, num_spans, span_capacity;
} MaskEncoder;
void mask_encoder_init(MaskEncoder *encoder, const MaskRules *rules);
void mask_encoder_deinit(MaskEncoder *encoder);

/* Laying out and encoding are two steps, so that a thread can do each step for many samples in a row: the code and the tables of both steps
 * together don't fit a core's caches. */
void mask_clear(MaskEncoder *encoder); /* forgets all samples that are laid out */
/* Lays out a sample: its messages, its prompt and answer, or its ids. The sample isn't needed afterwards. ERR_INVALID (the caller adds file
 * and line): the template raised an error, its renderings don't fit together, or ids or labels are wrong. */
NODISCARD Status mask_lay_out(MaskEncoder *encoder, Arena *arena, const Sample *sample);
void             mask_lay_text_out(MaskEncoder *encoder, Str text); /* lays out the text of a whole document */
/* Encodes sample `index` (from 0) of the samples laid out. */
NODISCARD Status mask_encode_waiting(MaskEncoder *encoder, size_t index);
/* Keeps the last sample in encoder->documents. Without this call the next sample replaces it. */
void mask_keep(MaskEncoder *encoder);
/* Lays out and encodes one sample. Forgets all samples laid out before. */
NODISCARD Status mask_encode(MaskEncoder *encoder, Arena *arena, const Sample *sample);

/* Encodes a document, or a part of one: BOS before the first part if the tokenizer adds it, EOS after the last. All ids are trained. */
NODISCARD Status mask_encode_text(MaskEncoder *encoder, Str text, bool is_first, bool is_last);
