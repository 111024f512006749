/* Pre-tokenizers cut a text into words; BPE only merges within a word. */
#pragma once

#include "base/json.h"
#include "text/pretokenize_regex.h"
#include "text/tokenizer_unicode.h"

/* Well-known regular expressions, recognized by comparing their text. They have hand-written scanners, several times faster than the
 * JIT. */
typedef enum ScanKind {
    SCAN_NONE,
    SCAN_GPT2,   /* GPT-2's: lower-case contractions; letters or digits with at most one space before them */
    SCAN_CL100K, /* Qwen's and Llama-3's: contractions in any case; letters with at most one other character before; digits in groups */
} ScanKind;

typedef struct Scanner {
    ScanKind kind;
    int      max_digits; /* SCAN_CL100K: most digits in a word */
    bool     marks;      /* SCAN_CL100K: marks (M*) count as letters */
} Scanner;

/* Returns the scanner equivalent to an expression; kind SCAN_NONE: there is none. */
Scanner scanner_of_pattern(const char *pattern, size_t len);
/* Returns the end of the word that starts at text[at], at < len. The text must be valid UTF-8. */
size_t scanner_next(const Scanner *scanner, const CharTable *table, const char *text, size_t at, size_t len);

typedef struct Piece {
    size_t start, end; /* byte offsets in the current text */
} Piece;

typedef struct PieceList {
    Piece *data;
    size_t len, capacity;
} PieceList;

/* A part of a text: a delimiter (match), or the text between two delimiters. */
typedef struct Span {
    size_t start, end;
    bool   match;
} Span;

typedef struct PreTokenizer PreTokenizer; /* a list of steps; immutable after parsing */

/* Working memory of one thread, to be reused. Zero-initialise all but regex, which is borrowed. */
typedef struct PreScratch {
    RegexScratch *regex;
    PieceList     pieces, spare;
    Span         *spans;
    size_t        num_spans, span_capacity;
    StrBuf        text[2];
} PreScratch;
void pre_scratch_deinit(PreScratch *scratch);

/* Parses the value of "pre_tokenizer" (NULL or null: no steps). Memory is from the arena, except for regular expressions: free those with
 * pretokenizer_deinit. Error messages name the component. */
NODISCARD Status pretokenizer_parse(Arena *arena, const JsonValue *json, PreTokenizer **out);
void             pretokenizer_deinit(PreTokenizer *pre);

/* Whether the last step is ByteLevel: then each byte of a word is written as a printable character. */
bool pretokenizer_ends_in_bytes(const PreTokenizer *pre);
/* The scanner whose words are exactly the pieces, so that callers can use it instead of pretokenize; NULL if more steps are needed. Callers
 * must encode words from raw bytes. */
const Scanner *pretokenizer_scanner(const PreTokenizer *pre);

/* Cuts `text` (valid UTF-8, not empty) into scratch->pieces of *out_text, which is `text` or points into the scratch. at_start: `text`
 * begins the whole input. raw_bytes: a ByteLevel step at the end doesn't replace bytes by characters. */
NODISCARD Status pretokenize(const PreTokenizer *pre, const CharTable *table, PreScratch *scratch, Str text, bool at_start, bool raw_bytes,
                             Str *out_text);

/* Appends the stand-in character (byte_to_char) of each byte. */
void append_byte_chars(StrBuf *out, const char *bytes, size_t len);
