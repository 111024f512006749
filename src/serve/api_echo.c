/* See api_echo.h. Tokens are decoded one by one, as in generated texts. The decoded text may differ from the text that was sent:
 * the tokenizer may have composed characters, changed their case, dropped blanks or added tokens of its own. So both texts are walked side
 * by side; where they differ, the walk searches for the nearest place from which they agree again. */
#include "serve/api_echo.h"

#include "base/str.h"

#include <string.h>

enum { NEAR = 16, AGREED = 4 }; /* NEAR: most characters skipped in both texts together; AGREED: characters that must agree after them */

typedef struct Walk {
    Str    decoded, sent;
    size_t at, to;                              /* bytes passed in `decoded` and in `sent` */
    size_t characters;                          /* number of characters in `sent` before `to` */
    size_t decoded_characters, sent_characters; /* within a difference: its characters that weren't passed yet, in each text */
} Walk;

/* Bytes of the character at `at`; 0 at the end. */
static size_t size_at(Str text, size_t at)
{
    size_t size = at < text.len;
    while (size && at + size < text.len && ((unsigned char)text.data[at + size] & 0xC0) == 0x80) size++;
    return size;
}

static bool same_at(const Walk *w, size_t at, size_t to)
{
    size_t size = size_at(w->decoded, at);
    return size && size == size_at(w->sent, to) && memcmp(w->decoded.data + at, w->sent.data + to, size) == 0;
}

/* Whether the next AGREED characters are the same; or all characters up to the end of both texts, if they are fewer. */
static bool agrees(const Walk *w, size_t at, size_t to)
{
    for (int i = 0; i < AGREED; i++) {
        if (at == w->decoded.len && to == w->sent.len) return true;
        if (!same_at(w, at, to)) return false;
        at += size_at(w->decoded, at);
        to += size_at(w->sent, to);
    }
    return true;
}

static bool is_mark(Str text, size_t at)
{
    if (size_at(text, at) != 2) return false;
    unsigned char first = (unsigned char)text.data[at], second = (unsigned char)text.data[at + 1];
    return first == 0xCC || (first == 0xCD && second < 0xB0);
}

/* Combining marks (U+0300 to U+036F) after a character: the tokenizer may compose the character and its marks into one. */
static size_t count_marks(Str text, size_t at)
{
    size_t count = 0;
    for (at += size_at(text, at); is_mark(text, at); at += 2) count++;
    return count;
}

/* Sets how many characters of each text differ here: the fewest (both texts counted together) after which the texts agree again. If no such
 * place is near, one character of each text differs. */
static void find_difference(Walk *w)
{
    size_t ats[NEAR + 1] = {w->at}, tos[NEAR + 1] = {w->to}, marks = 0;
    if ((unsigned char)w->decoded.data[w->at] >= 0x80) marks = count_marks(w->sent, w->to);
    w->decoded_characters = 1;
    w->sent_characters = 1 + marks;
    if (marks) return;
    for (int i = 1; i <= NEAR; i++) {
        ats[i] = ats[i - 1] + size_at(w->decoded, ats[i - 1]);
        tos[i] = tos[i - 1] + size_at(w->sent, tos[i - 1]);
    }
    for (int sum = 1; sum <= NEAR; sum++) {
        for (int left = 0; left <= sum; left++) {
            if (!agrees(w, ats[left], tos[sum - left])) continue;
            w->decoded_characters = (size_t)left;
            w->sent_characters = (size_t)(sum - left);
            return;
        }
    }
}

static void pass_sent(Walk *w)
{
    size_t size = size_at(w->sent, w->to);
    w->to += size;
    w->characters += size > 0;
}

/* Passes one character of `decoded`, and the characters of `sent` that it stands for. */
static void pass_one(Walk *w)
{
    if (!w->decoded_characters && !same_at(w, w->at, w->to)) find_difference(w);
    if (!w->decoded_characters) {
        for (; w->sent_characters; w->sent_characters--) pass_sent(w);
        w->decoded_characters = w->sent_characters = 1;
    }
    w->at += size_at(w->decoded, w->at);
    w->decoded_characters--;
    do {
        if (!w->sent_characters) break;
        pass_sent(w);
        w->sent_characters--;
    } while (!w->decoded_characters);
}

static size_t count_blanks(Str text, size_t at)
{
    size_t count = 0;
    while (at + count < text.len && text.data[at + count] == ' ') count++;
    return count;
}

/* At the beginning, surplus blanks of `decoded` were added by the tokenizer: its first blanks have no counterpart in `sent`. */
static void pass_front(Walk *w)
{
    size_t decoded = count_blanks(w->decoded, w->at), sent = count_blanks(w->sent, 0);
    if (w->to || w->decoded_characters || decoded <= sent) return;
    w->decoded_characters = decoded - sent;
    w->sent_characters = 0;
}

/* A special token that the tokenizer added takes no characters of the text that was sent. */
static void pass_token(Walk *w, size_t end, bool is_special)
{
    size_t len = end - w->at;
    bool   is_there = w->to + len <= w->sent.len && memcmp(w->sent.data + w->to, w->decoded.data + w->at, len) == 0;
    if (is_special && !is_there && !w->decoded_characters) w->at = end;
    if (w->at < end) pass_front(w);
    while (w->at < end) pass_one(w);
}

/* Decodes the tokens into one text. begins[i]: the byte where token i's text begins, after the replacement character of an incomplete
 * character before it; begins[num]: the length of the text. */
static void decode(const Tokenizer *tokenizer, const int32_t *ids, size_t num, StrBuf *out, size_t *begins)
{
    static const char replaced[] = "\xEF\xBF\xBD";
    TokenStream       stream = {0};
    for (size_t i = 0; i < num; i++) {
        size_t begin = out->len, cut = stream.pending.len;
        bool   may_end_well = cut && memcmp(stream.pending.data, replaced, cut) == 0;
        if (token_stream_push(tokenizer, &stream, ids[i], false, out) != OK) status_clear();
        bool ended_badly = cut && !may_end_well && out->len >= begin + 3 && memcmp(out->data + begin, replaced, 3) == 0;
        begins[i] = begin + (ended_badly ? 3 : 0);
    }
    token_stream_finish(&stream, out);
    begins[num] = out->len;
}

void api_echo(Arena *arena, const Tokenizer *tokenizer, const int32_t *ids, ApiPrompt *prompt)
{
    Arena   scratch = {0};
    StrBuf  decoded = {0};
    size_t *begins = arena_array(&scratch, size_t, prompt->num + 1);
    decode(tokenizer, ids, prompt->num, &decoded, begins);
    Str text = prompt->text.data ? prompt->text : strbuf_str(&decoded);
    prompt->echo = (Str){arena_strndup(arena, text.data, text.len), text.len};
    prompt->offsets = arena_array(arena, uint32_t, prompt->num);
    Walk walk = {.decoded = {strbuf_cstr(&decoded), decoded.len}, .sent = prompt->echo};
    for (size_t i = 0; i < prompt->num; i++) {
        while (walk.at < begins[i]) pass_one(&walk);
        prompt->offsets[i] = (uint32_t)walk.characters;
        pass_token(&walk, begins[i + 1], tokenizer_is_special(tokenizer, ids[i]));
    }
    strbuf_deinit(&decoded);
    arena_deinit(&scratch);
}
