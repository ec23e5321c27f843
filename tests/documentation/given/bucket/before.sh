# A store of this machine's, with an empty bucket.
export AWS_ENDPOINT_URL=http://127.0.0.1:$(python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
export AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b AWS_DEFAULT_REGION=us-east-1
moto_server -H 127.0.0.1 -p "${AWS_ENDPOINT_URL##*:}" >/dev/null 2>&1 &
trap "kill $!" EXIT
until python -c 'import boto3; boto3.client("s3").create_bucket(Bucket="bucket")' 2>/dev/null; do
    sleep 0.5
done
