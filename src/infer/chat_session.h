/* ChatSession: a conversation in turns, and the commands that a user may give between them. It knows neither a terminal nor a model. */
#pragma once

#include "base/json.h"

typedef struct ChatSession ChatSession;

typedef enum ChatAct {
    CHAT_NOTHING, /* a command that is done, or an empty line */
    CHAT_ASK,     /* the last turn waits for an answer: chat_session_answer or chat_session_withdraw comes next */
    CHAT_QUIT,
} ChatAct;

ChatSession *chat_session_create(const char *system);    /* NULL: no system message */
void         chat_session_destroy(ChatSession *session); /* NULL is fine */

/* A line of the user, without its end: a question, or a command (chat_session_help). A question that begins with / is written with two of
 * them. *say gets what to tell the user, lines without an end of the last. On failure nothing has changed. */
NODISCARD Status chat_session_take(ChatSession *session, const char *line, ChatAct *out_act, StrBuf *say);
/* The commands, a line each. */
void chat_session_help(StrBuf *out);

/* What the template lays out, and what /save writes: the system message and all turns; of one that waits, no answer. Valid until the
 * session changes. */
const JsonValue *chat_session_messages(ChatSession *session);

void chat_session_answer(ChatSession *session, Str answer);
void chat_session_withdraw(ChatSession *session); /* the question that waits is forgotten; its earlier answer stays */

/* Forgets the oldest turn; false: there is only the last one. */
bool chat_session_drop_oldest(ChatSession *session);

/* SampleOptions.request and .number: of the turn that waits, counted from the session's beginning, and how often it was asked before. */
uint64_t chat_session_request(const ChatSession *session);
uint32_t chat_session_number(const ChatSession *session);
