//! `POST /api/chat/send`: sends a message to a thread.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use chat::{ChatError, ChatMessageRequest};
use domain::request::check_prompt;
use protocol::{ErrorCode, MessageReceipt, SendMessage};
use store::{MAX_QUEUED_PER_USER, MAX_THREADS_PER_USER, Sent};

use crate::{
    completion::run_to_completion,
    problem::ApiError,
    public::{
        PublicApi,
        jobs::create::rejected,
        request::{ApiJson, AuditedCaller, ClientHeaders, idempotent},
    },
};

/// `Retry-After` for a full queue: a turn takes some seconds.
const QUEUE_FULL_RETRY: Duration = Duration::from_secs(5);

/// Why a user who sends too many messages has to wait.
const TOO_MANY: &str = "too many messages; send this one later";

/// Sends a message to the agent, or gives a command.
///
/// Without `thread_id` the message goes to the thread `main`, which its first message creates. Messages to a thread that is busy
/// are queued in order. A message that begins with `/` is a command: `/job TEXT`, `/status`, `/cancel ID`, `/stop`, `/new`,
/// `/compact` and `/help`; its answer is an entry of the thread. While a tool call waits for approval, a message that is only
/// `yes`, `no` or `always` answers it.
#[utoipa::path(
    post, path = "/api/chat/send", operation_id = "send_message", tag = "chat",
    request_body(content = SendMessage, example = json!({"content": "hello"})),
    params(
        ("Idempotency-Key" = Option<String>, Header, description = "Within 24 hours, the same key and body return the first answer again."),
    ),
    responses(
        (status = 202, body = MessageReceipt, description = "The message is stored."),
        (status = 403, description = "A hook refuses the message (`hook_denied`)."),
        (status = 404, description = "No such thread."),
        (status = 409, description = "There are too many threads, the chats have their maximum size, or the tool call that the message answers no longer waits."),
        (status = 429, description = "Too many messages are sent or queued."),
    )
)]
pub(super) async fn send(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    client: ClientHeaders,
    body: ApiJson<SendMessage>,
) -> Result<Response, ApiError> {
    let key = client.bind(&who.user, "POST /api/chat/send".to_owned(), body.bytes).await?;
    let SendMessage { thread_id, content } = body.value;
    check_prompt("content", &content).map_err(rejected)?;
    let request = ChatMessageRequest { user: who.user, thread: thread_id, content, key, audit: entry };
    let chats = api.chats.clone();
    // A command has several steps.
    let sent = run_to_completion(&api.tasks, async move { Ok(chats.send(request).await?) }).await?;
    response(sent)
}

fn response(sent: Sent) -> Result<Response, ApiError> {
    match sent {
        Sent::Stored(receipt) => Ok((StatusCode::ACCEPTED, Json(receipt)).into_response()),
        Sent::Known(lookup) => idempotent::respond(lookup),
        Sent::Missing => Err(ApiError::not_found()),
        Sent::NotOwner => Err(ApiError::not_owner()),
        Sent::TooManyThreads => {
            let detail = format!("there are {MAX_THREADS_PER_USER} threads, which is the maximum; delete some");
            Err(ApiError::new(ErrorCode::Conflict, detail))
        }
        Sent::TooMany(wait) => Err(ApiError::new(ErrorCode::RateLimited, TOO_MANY).with_retry_after(wait)),
        Sent::QueueFull => {
            let detail =
                format!("{MAX_QUEUED_PER_USER} messages are queued, which is the maximum; send this one later");
            Err(ApiError::new(ErrorCode::RateLimited, detail).with_retry_after(QUEUE_FULL_RETRY))
        }
    }
}

impl From<ChatError> for ApiError {
    fn from(error: ChatError) -> Self {
        match error {
            ChatError::Store(error) => error.into(),
            ChatError::Unsearched(error) => error.into(),
            ChatError::Hook(refused) => refused.into(),
            ChatError::Rejected(request) => rejected(request),
        }
    }
}
