# The same agent as a shell script with curl: one question, and its reward by a call.
set -eu
ask() { curl -sSf -H "Authorization: Bearer $OPENAI_API_KEY" -H 'Content-Type: application/json' -d "$2" "$1"; }
answer=$(ask "$OPENAI_BASE_URL/chat/completions" '{"model": "m", "messages": [{"role": "user", "content": "say ok"}]}')
case $answer in *'"ok"'*) reward=1 ;; *) reward=0 ;; esac
ask "$ROLEMESH_URL/reward" "{\"reward\": $reward}"
