# An image for CPUs: pip's own variables, such as PIP_INDEX_URL, choose where packages come from.
FROM python:3.12-slim

ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY . /build
RUN pip install --no-cache-dir -c /build/constraints.txt '/build[serve,vision,text,export]' && rm -rf /build

RUN useradd --create-home gpldla && install -d -o gpldla -m 700 /data
USER gpldla
VOLUME /data
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/readyz')"]

ENTRYPOINT ["gpldla", "serve", "--host", "0.0.0.0", "--data-dir", "/data"]
