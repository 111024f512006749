/* Pre-tokenizers: cut a text into the words that BPE merges within. */
#pragma once

#include "base/json.h"
#include "text/pretokenize_regex.h"
#include "text/tokenizer_unicode.h"

/* Expressions we know by heart and scan by hand, several times faster than the JIT; picked by comparing their text. */
typedef enum ScanKind {
    SCAN_NONE,
    SCAN_GPT2,   /* GPT-2: contractions in lower case, letters and numbers with a space before */
    SCAN_CL100K, /* Qwen and Llama-3: any case, letters with one other character before, numbers in groups */
} ScanKind;

typedef struct Scanner {
    ScanKind kind;
    int      max_digits; /* of SCAN_CL100K: numbers in one word */
    bool     marks;      /* of SCAN_CL100K: marks count as letters after the first character */
} Scanner;

/* The scanner equal to an expression; kind SCAN_NONE when there is none. */
Scanner scanner_of_pattern(const char *pattern, size_t len);
/* End of the word that starts at text[at], at < len; valid UTF-8. */
size_t scanner_next(const Scanner *scanner, const CharTable *table, const char *text, size_t at, size_t len);

typedef struct Piece {
    size_t start, end; /* bytes of the current text */
} Piece;

typedef struct PieceList {
    Piece *data;
    size_t len, capacity;
} PieceList;

/* A part of a text: a match of the delimiter, or what lies between two. */
typedef struct Span {
    size_t start, end;
    bool   match;
} Span;

typedef struct PreTokenizer PreTokenizer; /* a list of steps; immutable */

/* Memory of one thread, reused. Zero-initialised except regex, which is borrowed. */
typedef struct PreScratch {
    RegexScratch *regex;
    PieceList     pieces, spare;
    Span         *spans;
    size_t        num_spans, span_capacity;
    StrBuf        text[2];
} PreScratch;
void pre_scratch_deinit(PreScratch *scratch);

/* Reads the value of "pre_tokenizer" (NULL or null: none); memory from the arena, expressions until
 * pretokenizer_deinit. Errors name the component. */
NODISCARD Status pretokenizer_parse(Arena *arena, const JsonValue *json, PreTokenizer **out);
void             pretokenizer_deinit(PreTokenizer *pre);

/* True when the last step is ByteLevel: words are bytes, each written as a printable character. */
bool pretokenizer_ends_in_bytes(const PreTokenizer *pre);
/* The one scanner that does all the cutting, for callers that can use it directly; NULL when steps are needed. Only for
 * words as raw bytes. */
const Scanner *pretokenizer_scanner(const PreTokenizer *pre);

/* Cuts `text` (valid UTF-8, not empty) into scratch->pieces of *out_text, which is `text` or lies in the scratch.
 * at_start: it begins the whole input. raw_bytes: leave the last ByteLevel's mapping out. */
NODISCARD Status pretokenize(const PreTokenizer *pre, const CharTable *table, PreScratch *scratch, Str text, bool at_start, bool raw_bytes,
                             Str *out_text);

/* Appends the stand-in characters of bytes. */
void append_byte_chars(StrBuf *out, const char *bytes, size_t len);
