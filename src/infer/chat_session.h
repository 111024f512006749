/* ChatSession: a conversation in turns, and the commands that a user may give between them. It knows neither a terminal nor a model. */
#pragma once

#include "base/json.h"

typedef struct ChatSession ChatSession;

typedef enum ChatAct {
    CHAT_NOTHING, /* the command is done, or the line was empty */
    CHAT_ASK,     /* the last turn waits for an answer: call chat_session_answer or chat_session_withdraw next */
    CHAT_QUIT,
} ChatAct;

ChatSession *chat_session_create(const char *system);    /* NULL: no system message */
void         chat_session_destroy(ChatSession *session); /* NULL is fine */

/* Takes a line of the user without its newline: a question, or a command (chat_session_help). A question that begins with / is written with
 * //. *say gets lines to show the user, without a final newline. On failure nothing has changed. */
NODISCARD Status chat_session_take(ChatSession *session, const char *line, ChatAct *out_act, StrBuf *say);
/* Appends the commands, one a line. */
void chat_session_help(StrBuf *out);

/* The messages that the template renders and /save writes: the system message and all turns. A turn that waits has no answer in it. Valid
 * until the session changes. */
const JsonValue *chat_session_messages(ChatSession *session);

void chat_session_answer(ChatSession *session, Str answer);
/* Forgets the question that waits. Its earlier answer, if it has one, stays, and so do dropped turns. */
void chat_session_withdraw(ChatSession *session);

/* Leaves the oldest turn out, so that the turn that waits fits; chat_session_answer then forgets it. False: only the waiting turn is left,
 * or none waits. */
bool chat_session_drop_oldest(ChatSession *session);

/* SampleOptions.request and .number for the turn that waits: its index since the session began, and how often it was asked before. */
uint64_t chat_session_request(const ChatSession *session);
uint32_t chat_session_number(const ChatSession *session);
