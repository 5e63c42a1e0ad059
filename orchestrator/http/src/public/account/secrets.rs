//! `/api/secrets`: the caller's secrets. No response contains a value.

use axum::{Json, extract::State, http::StatusCode};
use egress::Host;
use protocol::{
    ErrorCode, FieldError, Page, SecretSummary, SetSecret, is_secret_name,
    limits::{MAX_SECRET_BYTES, MAX_SECRET_HOSTS, MAX_SECRETS, MAX_SECRETS_TOTAL_BYTES, MIN_SECRET_BYTES},
};
use secrecy::{ExposeSecret, SecretString};
use secrets::is_weak;
use store::SecretStored;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiJson, ApiPath, ApiQuery, AuditedCaller, Caller, PageParams, audited, cursor},
    },
};

pub(in crate::public) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .merge(audited("secret.set", routes!(set)))
        .merge(audited("secret.delete", routes!(delete)))
}

/// Why a weak value is refused, and what to do.
const WEAK: &str = "the value is an everyday word, a number such as a date or an address, or one repeated character, or has fewer than 12 \
                    characters of one kind; a stored value is redacted wherever \
                    it occurs, so ordinary text would be changed; choose another value, or set force (--force) to store it";

/// Lists the caller's secrets by name.
///
/// Values are never returned.
#[utoipa::path(
    get, path = "/api/secrets", operation_id = "list_secrets", tag = "secrets", params(PageParams),
    responses(
        (status = 200, body = Page<SecretSummary>, description = "A page."),
    )
)]
async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<SecretSummary>>, ApiError> {
    let (limit, after) = (params.limit()?, params.after::<String>()?);
    // One more, to know whether there is a next page.
    let secrets = api.store.secrets(&who.user, after.as_deref(), limit + 1).await?;
    Ok(Json(cursor::page(secrets, limit, String::clone)))
}

/// Creates or replaces a secret of the caller.
///
/// The value is stored encrypted, and no response contains it. With `hosts` it is sent to these only.
#[utoipa::path(
    post, path = "/api/secrets", operation_id = "set_secret", tag = "secrets",
    request_body(content = SetSecret, example = json!({"name": "GITHUB_TOKEN", "value": "not-a-real-token"})),
    responses(
        (status = 201, body = SecretSummary, description = "The secret is stored; a previous value is replaced."),
        (status = 409, description = "The caller has the maximum number of secrets, or their values the maximum size in all."),
        (status = 422, description = "`weak_secret`: ordinary text contains the value, and `force` is not set."),
    )
)]
async fn set(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    body: Result<ApiJson<SetSecret>, ApiError>,
) -> Result<(StatusCode, Json<SecretSummary>), ApiError> {
    let SetSecret { name, value, force, hosts } = body.map_err(without_content)?.value;
    let value = SecretString::from(value);
    let hosts = check(&name, &value, hosts)?;
    if !force && is_weak(value.expose_secret()) {
        return Err(ApiError::new(ErrorCode::WeakSecret, WEAK));
    }
    match api.secrets.set(&who.user, &name, &value, hosts, &entry).await? {
        SecretStored::Done(secret) => Ok((StatusCode::CREATED, Json(secret))),
        SecretStored::LimitReached => {
            let detail = format!("a user can have at most {MAX_SECRETS} secrets; delete one first");
            Err(ApiError::new(ErrorCode::Conflict, detail))
        }
        SecretStored::TotalTooLarge { others } => {
            let detail = format!(
                "a user's secrets have at most {MAX_SECRETS_TOTAL_BYTES} bytes in all, and the caller's others have {others}; \
                 delete one first or store a shorter value"
            );
            Err(ApiError::new(ErrorCode::Conflict, detail))
        }
    }
}

/// Returns the hosts in their canonical form.
fn check(name: &str, value: &SecretString, hosts: Option<Vec<String>>) -> Result<Option<Vec<String>>, ApiError> {
    let mut errors = vec![];
    let mut add = |field: &str, message: String| errors.push(FieldError { field: field.to_owned(), message });
    if !is_secret_name(name) {
        add("name", "must be 1 to 64 letters, digits and the characters _.-, and not . or ..".to_owned());
    }
    let bytes = value.expose_secret().len();
    if !(MIN_SECRET_BYTES..=MAX_SECRET_BYTES).contains(&bytes) {
        add("value", format!("must be {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes, not {bytes}"));
    }
    let given = hosts.iter().flatten();
    if given.clone().count() > MAX_SECRET_HOSTS {
        add("hosts", format!("Maximum number of items: {MAX_SECRET_HOSTS}"));
    }
    let mut canonical = Vec::new();
    for (index, host) in given.enumerate().take(MAX_SECRET_HOSTS) {
        match Host::parse(host) {
            Ok(host) => canonical.push(host.to_string()),
            Err(error) => add(&format!("hosts[{index}]"), error.to_string()),
        }
    }
    if errors.is_empty() { Ok(hosts.map(|_| canonical)) } else { Err(ApiError::invalid(errors)) }
}

/// The error about a body without what it repeats of the body: a value of the wrong type, a field of another name.
fn without_content(error: ApiError) -> ApiError {
    if error.code() != ErrorCode::Invalid {
        return error;
    }
    let is_known = |error: &&FieldError| ["name", "value", "force", "hosts"].contains(&error.field.as_str());
    let field = error.errors().iter().find(is_known).map_or("body", |error| error.field.as_str());
    ApiError::field(
        field,
        "must be an object with the strings name and value, optionally the boolean force and the list hosts, and nothing else",
    )
}

/// Deletes a secret of the caller.
///
/// It is removed at once, and tools no longer get its value.
#[utoipa::path(
    delete, path = "/api/secrets/{name}", operation_id = "delete_secret", tag = "secrets",
    params(("name" = String, Path, description = "Name of the secret.")),
    responses(
        (status = 204, description = "The secret is deleted."),
    )
)]
async fn delete(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(name): ApiPath<String>,
) -> Result<StatusCode, ApiError> {
    if api.secrets.delete(&who.user, &name, &entry).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::extract::parse_json;

    #[rstest]
    #[case(r#"{"name": "TOKEN", "value": 87654321}"#, "value")]
    #[case(r#"{"name": "TOKEN", "value": {"hunter22": 1}}"#, "value")]
    #[case(r#"{"name": "TOKEN", "hunter22": "x"}"#, "body")]
    #[case(r#"{"name": "TOKEN"}"#, "value")]
    #[case(r#"{"name": "TOKEN", "value": "hunter22", "force": "hunter22"}"#, "force")]
    #[case(r#"{"name": 87654321, "value": "hunter22"}"#, "name")]
    #[case(r#""hunter22""#, "body")]
    #[case(r#"["TOKEN", "hunter22"]"#, "body")]
    fn an_error_about_the_body_repeats_nothing_of_it(#[case] body: &str, #[case] field: &str) {
        let error = without_content(parse_json::<SetSecret>(body.as_bytes()).unwrap_err());
        assert_eq!(error.errors()[0].field, field);
        let shown = format!("{error:?}");
        assert!(!shown.contains("hunter") && !shown.contains("8765"), "{shown}");
    }

    #[test]
    fn a_malformed_body_is_reported_without_its_text() {
        let error = without_content(parse_json::<SetSecret>(br#"{"value": "hunter22" "name"}"#).unwrap_err());
        assert_eq!(error.code(), ErrorCode::BadRequest);
        assert!(!format!("{error:?}").contains("hunter"), "{error:?}");
    }
}
