import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpClient.Version;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** The walkthrough with java.net.http.HttpClient (walkthrough.ts). Prints each step as a line of JSON. */
class Http2Client {
  private static final String BASE = System.getenv("GATEHOUSE_URL");
  private static final char[] PASSWORD = "password".toCharArray();

  private final HttpClient client;
  private String token;

  Http2Client() throws Exception {
    client = HttpClient.newBuilder().version(Version.HTTP_2).sslContext(context()).build();
  }

  public static void main(String[] args) throws Exception {
    new Http2Client().run();
  }

  void run() throws Exception {
    var granted = send(request("/authsvc/Authorize/Certificate")
        .header("Content-Type", "application/json")
        .POST(BodyPublishers.ofString(System.getenv("TOKEN_REQUEST"))));
    report("token", granted, null);
    var upload = Path.of(System.getenv("UPLOAD_FILE"));
    var refused = send(request("/files/welcome"));
    var refusedBody = send(request("/reports/digest").POST(BodyPublishers.ofString(System.getenv("SMALL_BODY"))));
    var refusedUpload = send(request("/reports/digest").POST(BodyPublishers.ofFile(upload)));
    var matcher = Pattern.compile("\"access_token\":\"([^\"]+)\"").matcher(text(granted));
    if (!matcher.find()) throw new IllegalStateException("no token");
    token = matcher.group(1);

    var called = send(request("/files/welcome"));
    report("call", called, text(called));
    report("refused", refused, null);
    report("refused-body", refusedBody, null);
    report("refused-upload", refusedUpload, null);
    var uploaded = send(request("/reports/digest").POST(BodyPublishers.ofFile(upload)));
    report("upload", uploaded, text(uploaded));
    var downloaded = send(request("/files/large"));
    report("download", downloaded, HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(downloaded.body())));
    items(Integer.parseInt(System.getenv("ITEMS")), Integer.parseInt(System.getenv("CONCURRENCY")));
  }

  void items(int count, int concurrency) throws Exception {
    var free = new Semaphore(concurrency);
    var correct = new AtomicInteger();
    var running = new ArrayList<CompletableFuture<Void>>();
    for (int number = 1; number <= count; number += 1) {
      var expected = "item " + number + "\n";
      free.acquire();
      running.add(client
          .sendAsync(request("/files/item/" + number).build(), BodyHandlers.ofString())
          .whenComplete((response, error) -> free.release())
          .thenAccept(response -> {
            if (response.statusCode() == 200 && response.version() == Version.HTTP_2 && response.body().equals(expected))
              correct.incrementAndGet();
          }));
    }
    CompletableFuture.allOf(running.toArray(CompletableFuture[]::new)).join();
    print("items", 200, "HTTP/2", correct.toString());
  }

  HttpRequest.Builder request(String path) {
    var builder = HttpRequest.newBuilder(URI.create(BASE + path));
    return token == null ? builder : builder.header("Authorization", "Bearer " + token);
  }

  HttpResponse<byte[]> send(HttpRequest.Builder builder) throws Exception {
    return client.send(builder.build(), BodyHandlers.ofByteArray());
  }

  static String text(HttpResponse<byte[]> response) {
    return new String(response.body(), StandardCharsets.UTF_8);
  }

  static void report(String step, HttpResponse<?> response, String body) {
    var version = response.version() == Version.HTTP_2 ? "HTTP/2" : response.version().toString();
    print(step, response.statusCode(), version, body);
  }

  static void print(String step, int status, String version, String body) {
    var more = body == null ? "" : ",\"body\":\"" + body + "\"";
    System.out.println("{\"step\":\"" + step + "\",\"status\":" + status + ",\"version\":\"" + version + "\"" + more + "}");
  }

  static SSLContext context() throws Exception {
    var trusted = KeyStore.getInstance("PKCS12");
    trusted.load(null);
    trusted.setCertificateEntry("ca", certificate("CA_FILE"));
    var trust = TrustManagerFactory.getInstance("PKIX");
    trust.init(trusted);

    var own = KeyStore.getInstance("PKCS12");
    own.load(null);
    var chain = new Certificate[] {certificate("CLIENT_CERTIFICATE")};
    own.setKeyEntry("own", privateKey(), PASSWORD, chain);
    var identity = KeyManagerFactory.getInstance("PKIX");
    identity.init(own, PASSWORD);

    var context = SSLContext.getInstance("TLS");
    context.init(identity.getKeyManagers(), trust.getTrustManagers(), null);
    return context;
  }

  static Certificate certificate(String variable) throws Exception {
    var bytes = Files.readAllBytes(Path.of(System.getenv(variable)));
    return CertificateFactory.getInstance("X.509").generateCertificate(new ByteArrayInputStream(bytes));
  }

  static PrivateKey privateKey() throws Exception {
    var pem = Files.readString(Path.of(System.getenv("CLIENT_KEY")));
    var bytes = Base64.getMimeDecoder().decode(pem.replaceAll("-----[A-Z ]+-----", ""));
    return KeyFactory.getInstance("EC").generatePrivate(new PKCS8EncodedKeySpec(bytes));
  }
}
