import type { Words } from './words.ts';

// Made when a page first needs it: most processes never write one, and it takes megabytes of Node's own data.
let known: Intl.DateTimeFormat | undefined;
const dates = (): Intl.DateTimeFormat =>
  (known ??= new Intl.DateTimeFormat('de-DE', { dateStyle: 'long', timeZone: 'UTC' }));

/** Alles, was die Seiten auf Deutsch sagen. */
export const german: Words = {
  language: 'de',
  direction: 'ltr',

  and: (items) => new Intl.ListFormat('de', { style: 'long', type: 'conjunction' }).format(items),
  minutes: (seconds) => {
    const minutes = Math.round(seconds / 60);
    if (seconds < 45) return 'weniger als 1 Minute';
    return minutes <= 1 ? '1 Minute' : `${minutes} Minuten`;
  },
  // „vor“ verlangt den dritten Fall: vor 2 Tagen, vor weniger als 1 Minute.
  ago: (time) => `vor ${time.replace(/Tage$/, 'Tagen')}`,
  days: (seconds) => {
    const [hours, days] = [Math.round(seconds / 3_600), Math.round(seconds / 86_400)];
    if (seconds < 5_400) return german.minutes(seconds);
    if (hours < 36) return `${hours} Stunden`;
    return `${days} Tage`;
  },
  date: (milliseconds) => dates().format(milliseconds),
  step: (at, of) => `Schritt ${at} von ${of}`,
  errorTitle: (title) => `Fehler: ${title}`,

  code: {
    title: 'Gerät verbinden',
    lead: 'Geben Sie den Code ein, den Ihr Gerät oder Programm anzeigt.',
    leadPrefilled: 'Prüfen Sie, ob Ihr Gerät oder Programm diesen Code anzeigt.',
    label: 'Code',
    hint: 'Acht Buchstaben, zum Beispiel BCDF-GHJK. Groß oder klein, mit oder ohne Bindestrich.',
    next: 'Weiter',
    wrong:
      'Dieser Code funktioniert nicht. Vielleicht ist er vertippt oder abgelaufen. Prüfen Sie ihn, oder beginnen Sie am Gerät von vorn, um einen neuen zu erhalten.',
    missing: 'Geben Sie den Code ein, den Ihr Gerät anzeigt.',
  },

  signIn: {
    title: 'Anmelden',
    lead: 'Melden Sie sich an, um zu sehen, worum gebeten wird. Noch ist nichts genehmigt.',
    leadGrants: 'Melden Sie sich an, um zu sehen, was Sie genehmigt haben.',
    leadCode: 'Melden Sie sich an und geben Sie dann Ihren Code ein. Noch ist nichts genehmigt.',
    userName: 'Benutzername',
    password: 'Passwort',
    next: 'Anmelden',
    wrong: 'Benutzername oder Passwort stimmt nicht. Bitte versuchen Sie es noch einmal.',
    or: 'oder',
    certificate: 'Mein Zertifikat verwenden',
    certificateHint: 'Ihr Browser hat ein Zertifikat vorgelegt.',
    certificateWrong:
      'Mit diesem Zertifikat können Sie sich hier nicht anmelden. Sie können sich mit Ihrem Passwort anmelden.',
    certificateMissing:
      'Ihr Browser hat kein Zertifikat vorgelegt. Sie können sich stattdessen mit Ihrem Passwort anmelden.',
    otherCode: 'Anderen Code eingeben',
    with: (provider) => `Mit ${provider} anmelden`,
    none: 'Mit diesem Browser kann man sich hier nicht anmelden. Fragen Sie, wer diesen Dienst verwaltet.',
    cancelled: 'Die Anmeldung wurde nicht abgeschlossen. Bitte versuchen Sie es noch einmal.',
    notAccepted: 'Die Anmeldung konnte nicht angenommen werden. Bitte versuchen Sie es noch einmal.',
    unknown: 'Sie sind dort angemeldet, hier aber nicht bekannt. Fragen Sie, wer diesen Dienst verwaltet.',
  },

  leaving: {
    title: 'Einen Augenblick',
    lead: (provider) => `Sie werden zur Anmeldung zu ${provider} weitergeleitet.`,
    next: 'Weiter',
  },
  returned: {
    title: 'Sie sind angemeldet',
    lead: 'Sie werden zurückgeleitet.',
    next: 'Weiter',
  },

  review: {
    title: 'Genehmigen Sie das?',
    asks: ' bittet darum, in Ihrem Namen zu handeln.',
    codeLabel: 'Vergleichen Sie den Code',
    codeHint: 'Er muss derselbe sein wie auf Ihrem Gerät.',
    may: 'Erlaubt wäre:',
    technical: 'Technisch ausgedrückt',
    asked: 'Angefragt',
    from: 'Von Adresse',
    open: 'Offen für',
    until: (time) => `bis ${time}`,
    warning:
      'Genehmigen Sie nur, was Sie selbst gerade eben begonnen haben. Hat Ihnen jemand den Code oder einen Link geschickt, lehnen Sie ab.',
    approve: 'Genehmigen',
    deny: 'Ablehnen',
    signedInAs: 'Angemeldet als ',
    notYou: 'Nicht Sie? Abmelden',
  },

  notAllowed: {
    title: 'Das können Sie nicht genehmigen',
    integration:
      'Sie haben keinen Zugang zu dieser Anwendung. Fragen Sie, wer sie verwaltet, wenn Sie ihn brauchen.',
    scope: (excess) =>
      `Sie haben Zugang zu dieser Anwendung, aber sie verlangt mehr, als Sie geben dürfen: ${excess}.`,
    disabled: 'Ihr Konto ist abgeschaltet.',
    withdrawn: 'Worum dieses Gerät bittet, wird hier nicht mehr angeboten.',
  },

  approved: {
    title: 'Genehmigt',
    lead: ' kann jetzt in Ihrem Namen handeln.',
    close: 'Sie können diese Seite schließen und zu Ihrem Gerät zurückkehren.',
  },
  denied: {
    title: 'Abgelehnt',
    lead: ' hat keinen Zugang erhalten.',
    close: 'Sie können diese Seite schließen.',
  },
  signOut: 'Abmelden',

  grants: {
    title: 'Was Sie genehmigt haben',
    lead: 'Diese Programme und Geräte können in Ihrem Namen handeln. Widerrufen Sie, was Sie nicht brauchen oder nicht kennen.',
    none: 'Zurzeit kann nichts in Ihrem Namen handeln.',
    awaited: (name) =>
      `Sie haben gerade ${name} genehmigt. Es erscheint hier, sobald Ihr Gerät den Zugang abgeholt hat, meist in wenigen Sekunden.`,
    may: 'Erlaubt ist:',
    byDevice: 'Im Browser genehmigt',
    byCertificate: 'Mit Ihrem Zertifikat erteilt',
    made: 'Erteilt',
    used: 'Zuletzt benutzt',
    unused: 'Seitdem nicht',
    until: 'Endet',
    inTime: (time) => `in ${time.replace(/Tage$/, 'Tagen')}`,
    gone: 'Wird hier nicht mehr angeboten',
    choose: 'Widerrufen …',
    chooseNamed: (name) => `Widerrufen, was ${name} darf`,
    more: 'Mehr anzeigen',
    mine: 'Was habe ich genehmigt?',
  },
  revoke: {
    title: 'Widerrufen?',
    lead: ' kann dann nicht mehr in Ihrem Namen handeln, ab sofort und überall. Andere Programme behalten, was sie haben.',
    yes: 'Widerrufen',
    no: 'Behalten',
    done: (name) => `Widerrufen: ${name} kann nicht mehr in Ihrem Namen handeln.`,
    missing: {
      title: 'Das gibt es nicht mehr',
      lead: 'Vielleicht wurde es schon widerrufen, oder seine Zeit ist um.',
    },
    back: 'Zurück zur Liste',
  },
  languageLabel: 'Sprache',
  links: 'Weitere Links',
  another: 'Anderen Code eingeben',
  startAgain: 'Von vorn beginnen',
  tryAgain: 'Noch einmal versuchen',

  spent: {
    title: 'Schon genehmigt',
    lead: 'Diese Anfrage ist bereits genehmigt. Wartet Ihr Gerät noch immer, beginnen Sie dort von vorn, um einen neuen Code zu erhalten.',
  },
  alreadyDenied: {
    title: 'Diese Anfrage wurde abgelehnt',
    lead: 'Jemand hat diese Anfrage abgelehnt, und dabei bleibt es. Beginnen Sie am Gerät von vorn, um einen neuen Code zu erhalten.',
  },
  closed: {
    title: 'Diese Anfrage ist geschlossen',
    lead: 'Es gab zu viele missglückte Anmeldungen, darum wurde diese Anfrage geschlossen. Beginnen Sie am Gerät von vorn, um einen neuen Code zu erhalten.',
  },
  gone: {
    title: 'Dieser Code funktioniert nicht',
    lead: 'Vielleicht ist seine Zeit abgelaufen. Beginnen Sie am Gerät von vorn, um einen neuen Code zu erhalten.',
  },
  ranOut: {
    title: 'Die Zeit ist abgelaufen',
    lead: 'Ein Code gilt nur wenige Minuten. Es wurde nichts genehmigt. Beginnen Sie am Gerät von vorn, um einen neuen Code zu erhalten.',
  },
  withdrawn: {
    title: 'Nicht verfügbar',
    lead: 'Worum dieses Gerät bittet, wird hier nicht mehr angeboten. Fragen Sie, wer es verwaltet.',
  },
  tooMany: {
    title: 'Zu viele Versuche',
    lead: (wait) => `Bitte warten Sie ein wenig (${wait}) und versuchen Sie es dann noch einmal.`,
    leadSignIn: (wait) =>
      `Zurzeit werden viele falsche Codes eingegeben. Ihrer kann richtig sein: Melden Sie sich zuerst an, und geben Sie ihn dann ein. Oder warten Sie etwas (${wait}), und versuchen Sie es dann noch einmal.`,
  },
  expired: {
    title: 'Diese Seite ist abgelaufen',
    lead: 'Zu Ihrer Sicherheit gilt die Seite nur kurze Zeit, und nur mit eingeschalteten Cookies. Es wurde nichts genehmigt.',
  },
  refused: {
    title: 'Das konnte nicht angenommen werden',
    lead: 'Was geschickt wurde, kam nicht von dieser Seite in ihrem jetzigen Stand. Vielleicht war sie zu lange oder in mehreren Tabs geöffnet. Es wurde nichts geändert.',
  },
  unreadable: {
    title: 'Das war nicht lesbar',
    lead: 'Was geschickt wurde, konnte nicht gelesen werden. Es wurde nichts geändert.',
  },
  away: {
    title: 'Kurz nicht verfügbar',
    lead: 'Bei uns funktioniert gerade etwas nicht. Es liegt nicht an Ihnen, und Ihr Code gilt weiter, bis seine Zeit abläuft. Bitte versuchen Sie es gleich noch einmal.',
  },
  directoryAway: {
    title: 'Die Anmeldung geht gerade nicht',
    lead: 'Womit wir Sie anmelden, ist im Augenblick nicht erreichbar. Es liegt nicht an Ihnen, und Ihr Code gilt weiter, bis seine Zeit abläuft. Bitte versuchen Sie es gleich noch einmal.',
  },
  busy: {
    title: 'Gerade sehr viel los',
    lead: 'Im Augenblick melden sich viele an. Es liegt nicht an Ihnen. Bitte versuchen Sie es gleich noch einmal.',
  },
  failed: {
    title: 'Etwas ist schiefgegangen',
    lead: 'Bei uns ist etwas schiefgegangen. Es liegt nicht an Ihnen. Bitte versuchen Sie es noch einmal.',
    reference: (id) => `Wenn es wieder geschieht, nennen Sie uns diese Nummer: ${id}`,
  },
  missingPage: { title: 'Diese Seite gibt es nicht', lead: 'Vielleicht ist die Adresse vertippt.' },
  wrongMethod: {
    title: 'Diese Seite wird anders benutzt',
    lead: 'Bitte beginnen Sie auf der ersten Seite.',
  },

  permissions: {
    read: 'sehen',
    view: 'sehen',
    list: 'auflisten',
    search: 'durchsuchen',
    write: 'ändern',
    update: 'ändern',
    edit: 'ändern',
    create: 'anlegen',
    add: 'hinzufügen',
    delete: 'löschen',
    remove: 'entfernen',
    upload: 'hochladen',
    download: 'herunterladen',
    send: 'senden',
    share: 'teilen',
    run: 'ausführen',
    execute: 'ausführen',
    start: 'starten',
    stop: 'anhalten',
    approve: 'genehmigen',
    manage: 'verwalten',
    admin: 'administrieren',
  },
  quoted: (word) => `„${word}“`,
  mayDo: (verbs, resource) => `${resource} ${verbs}`,
  mayUse: (resource) => `${resource} benutzen, ohne besondere Rechte`,
};
